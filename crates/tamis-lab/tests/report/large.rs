//! A page of 100,000 trajectories keeps its size limit, and lists what it leaves out.

use crate::fixture::{Made, made, member, run, write_rollouts};

#[test]
fn a_hundred_thousand_trajectories() {
    const STEPS: u64 = 250;
    const GROUPS: u64 = 50;
    const MEMBERS: u32 = 8;
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "large", STEPS);
    let text = "word ".repeat(12);
    for step in 1..=STEPS {
        let groups: Vec<Made> = (0..GROUPS)
            .map(|number| {
                let correct = (number * step) % u64::from(MEMBERS + 1);
                let member =
                    |index: u32| member(index, &text, f64::from(u8::from(u64::from(index) < correct)));
                Made {
                    id: step * GROUPS + number,
                    prompt: "p".repeat(200),
                    verdict: match correct {
                        0 => "all_wrong",
                        8 => "all_correct",
                        _ => "trained",
                    },
                    members: (0..MEMBERS).map(member).collect(),
                }
            })
            .collect();
        write_rollouts(&path, step, &groups);
    }
    let page = made(&[path]);
    assert_eq!(page.num_trajectories, 100_000);
    assert!(page.html.len() < 10_000_000, "{} bytes", page.html.len());
    assert_eq!(page.html.matches("<article class=\"group\"").count(), 48);
    assert_eq!(page.html.matches("<article class=\"member\">").count(), 48 * 8);
    for said in [
        "There are 250 steps: each point of a chart is the mean of 2 of them",
        "Thinned: 120 of 250 steps, evenly.",
        "48 of 12500 groups (<code>--samples</code>), at 12 steps, evenly",
        "24 of the step&#39;s 50 groups",
    ] {
        assert!(page.html.contains(said) || page.html.contains(&said.replace("&#39;", "'")), "{said}");
    }
}
