// Completions: all that hold a text, or one step at a time, all groups or some.
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const find = document.getElementById("find");
  if (!find) return;
  const found = document.getElementById("found");
  const slider = document.getElementById("step");
  const steps = all("section.step");
  const groups = all("#samples article.group");
  const texts = new Map(groups.map((group) => [group, group.textContent.toLowerCase()]));
  const shown = document.getElementById("step-shown");
  const verdict = document.getElementById("verdict");
  const [back, forth] = ["back", "forth"].map((id) => document.getElementById(id));
  const update = () => {
    const at = Number(slider?.value);
    const wanted = find.value.trim().toLowerCase();
    for (const group of groups) {
      group.hidden = !texts.get(group).includes(wanted)
        || (verdict?.value && group.dataset.verdict && group.dataset.verdict !== verdict.value);
    }
    const hits = groups.filter((group) => !group.hidden);
    // A search is through all steps that are shown.
    steps.forEach((step, number) => { step.hidden = wanted ? !hits.some((group) => step.contains(group)) : number !== at; });
    document.getElementById("samples").classList.toggle("searched", wanted !== "");
    found.textContent = wanted ? `${hits.length} of ${groups.length} are shown` : "";
    if (!slider) return;
    const text = `step ${steps[at].dataset.step} (${at + 1} of ${steps.length})`;
    shown.textContent = text;
    slider.setAttribute("aria-valuetext", text);
    back.disabled = at === 0;
    forth.disabled = at === steps.length - 1;
  };
  const move = (by) => {
    slider.value = Number(slider.value) + by;
    update();
  };
  for (const control of [find, slider, verdict]) control?.addEventListener("input", update);
  back?.addEventListener("click", () => move(-1));
  forth?.addEventListener("click", () => move(1));
  // A link to a group leads to its step.
  const follow = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    const step = target && target.closest("section.step");
    if (!step) return;
    slider.value = steps.indexOf(step);
    find.value = verdict.value = "";
    update();
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", follow);
  for (const controls of all(".controls")) controls.hidden = false;
  update();
  follow();
})();
