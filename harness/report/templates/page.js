// The page is complete without this: it adds copying, a filter and folds, and opens what is folded for links and print.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const copied = document.getElementById("copied");

  for (const button of all("button.copy")) {
    const code = button.parentElement.querySelector("code");
    const says = (word) => { button.textContent = word; copied.textContent = word; };
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        says("Copied");
      } catch { // without a secure context or the right to write there is no clipboard
        getSelection().selectAllChildren(code);
        says("Selected");
      }
      setTimeout(() => { button.textContent = "Copy"; copied.textContent = ""; }, 1500);
    });
  }

  addEventListener("click", (event) => {
    const link = event.target.closest("a.link");
    if (!link) return;
    event.preventDefault();
    history.replaceState(null, "", link.href);
    navigator.clipboard?.writeText(link.href).then(() => { copied.textContent = "Link copied"; }, () => {});
  });

  const form = document.getElementById("filter");
  const bodies = all("table.requirements tbody");
  const boxes = form.elements.verdict || [];
  const low = (element) => element.textContent.toLowerCase();
  let rows; // each with its text, once it is asked for
  const texts = () => bodies.flatMap((body, chapter) => all("tr.row", body).map((row) => ({
    row, body, chapter, text: `${low(row)} ${low(form.elements.chapter[chapter + 1])}`, ends: row.dataset.ends.split(" ").map((end) => end.split(":")),
  })));
  const filter = () => {
    rows = rows || texts();
    const { find, level, world, chapter, differs } = form.elements;
    const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const parts = new Set([...boxes].filter((box) => box.checked).map((box) => box.value));
    const full = new Set();
    let shown = 0;
    for (const { row, body, chapter: place, text, ends } of rows) {
      const fits = ends.some(([at, part]) => parts.has(part) && (!world.value || +at === world.selectedIndex - 1))
        && (!level.value || row.dataset.level === level.value)
        && (!chapter.value || place === chapter.selectedIndex - 1)
        && words.every((word) => text.includes(word))
        && !(differs?.checked && row.dataset.differs === "no");
      row.hidden = !fits;
      if (fits) { full.add(body); shown += 1; }
    }
    for (const body of bodies) body.hidden = !full.has(body);
    document.querySelector("table.requirements").classList.toggle("filtered", shown < rows.length);
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
  };
  const keep = () => { // the filter in the address, as far as it is not as it began
    const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    if ([...boxes].every((box) => box.checked)) words.delete("verdict");
    history.replaceState(null, "", `${String(words) ? `?${words}` : location.pathname}${location.hash}`);
  };
  const restore = () => {
    const words = new URLSearchParams(location.search);
    for (const one of form.elements) {
      const values = words.getAll(one.name);
      if (one.type !== "checkbox") one.value = values[0] || "";
      else one.checked = values.includes(one.value) || (one.name === "verdict" && !values.length);
    }
    if (String(words)) filter();
  };
  form.hidden = !document.querySelector("tr.row");
  form.addEventListener("input", () => { filter(); keep(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  if (!form.hidden) restore();

  const fold = (body, is) => {
    body.classList.toggle("folded", is);
    body.querySelector("button.fold").setAttribute("aria-expanded", String(!is));
  };
  for (const body of bodies) {
    body.rows[0].addEventListener("click", () => fold(body, !body.classList.contains("folded")));
  }

  const open = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let one = target; one; one = one.parentElement) {
      if (one.tagName === "DETAILS") one.open = true;
      if (one.tagName === "TBODY" && one.querySelector("button.fold")) fold(one, false);
    }
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", open);
  if (location.hash) open();
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of folded) fold.open = false; });
})();
