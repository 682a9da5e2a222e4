//! Texts that were sampled stay texts, whatever they hold.

use crate::fixture::{Made, made, member, played, run, write_rollouts};

const HOSTILE: &str = "</pre></script><script>alert(1)</script><img src=x onerror=alert(1)>\" onload='x' &lt; \u{202e}\u{0}\u{1b}[31m";

#[test]
fn hostile_texts_everywhere() {
    let folder = tempfile::tempdir().unwrap();
    let path = run(folder.path(), "<b>run", 2);
    let group = |id: u64, members| Made { id, prompt: HOSTILE.to_owned(), verdict: "trained", members };
    let groups = [
        group(1, vec![member(0, HOSTILE, 1.0), member(1, "<style>*{display:none}</style>", 0.0)]),
        group(2, vec![played(0, &[(HOSTILE, HOSTILE, HOSTILE), ("x", "", "")], true)]),
    ];
    write_rollouts(&path, 2, &groups);
    std::fs::create_dir(path.join("validation")).unwrap();
    for step in [0, 2] {
        let row = serde_json::json!({
            "prompt_id": 0, "prompt": HOSTILE, "completion": HOSTILE, "ground_truth": HOSTILE, "pred": HOSTILE, "reward": 1,
        });
        std::fs::write(path.join(format!("validation/step_{step}.jsonl")), format!("{row}\n")).unwrap();
    }
    let settings = std::fs::read_to_string(path.join("config.yaml")).unwrap();
    std::fs::write(
        path.join("config.yaml"),
        settings + "data:\n  train: \"<img src=x>\"  # <i>a</i>.yaml:1\n",
    )
    .unwrap();
    let metrics = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    let metrics = metrics.replace("\"actor/entropy\"", "\"<u>x</u>\":1,\"val-core/<s>/acc/mean@1\":1,\"train/num_dropped/<q>\":1,\"timing_s/<a>\":1,\"actor/entropy\"");
    std::fs::write(path.join("metrics.jsonl"), metrics).unwrap();
    let html = made(&[path]).html;
    assert!(html.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && html.contains("Before and after"));
    assert!(html.contains("<mark class=\"right\""), "an answer that is a whole completion is marked");
    for tag in ["<script>", "<img", "<b>", "<u>", "<s>", "<q>", "<i>", "<a>", "<style>*", "onerror=alert(1)>"]
    {
        assert!(!html.contains(tag), "{tag}");
    }
    // One style and one script of the page itself.
    assert_eq!((html.matches("<script").count(), html.matches("<style").count()), (1, 1));
    assert!(
        !html.contains(['\u{202e}', '\u{0}', '\u{1b}']),
        "characters that control a reader are shown, not obeyed"
    );
    for outside in ["http://", "https://", "src=\"", "@import"] {
        assert!(!html.contains(outside), "the page reaches for {outside}");
    }
    assert!(html.contains("script-src 'nonce-tamis'"), "and a handler that got through would not run");
}
