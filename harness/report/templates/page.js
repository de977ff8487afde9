// The page is complete without this: it adds copy buttons and a filter, and opens what is folded for links and print.
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

  const form = document.getElementById("filter");
  const differs = document.getElementById("differs");
  const low = (element) => element.textContent.toLowerCase();
  let rows; // each with its text, once it is asked for
  const texts = () => all("table.requirements tbody").flatMap((body) => {
    const chapter = low(body.rows[0]);
    return all("tr.row", body).map((row) => ({ row, body, text: `${low(row)} ${chapter}` }));
  });
  const filter = () => {
    rows = rows || texts();
    const words = document.getElementById("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const parts = new Set(all("input[name=part]:checked", form).map((box) => box.value));
    const full = new Set();
    let shown = 0;
    for (const { row, body, text } of rows) {
      const fits = row.dataset.parts.split(" ").some((part) => parts.has(part))
        && words.every((word) => text.includes(word))
        && !(differs && differs.checked && row.dataset.differs === "no");
      row.hidden = !fits;
      if (fits) { full.add(body); shown += 1; }
    }
    for (const body of all("table.requirements tbody")) body.hidden = !full.has(body);
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
  };
  form.hidden = !document.querySelector("tr.row");
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());

  const open = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
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
