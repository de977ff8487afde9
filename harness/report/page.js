// The page is complete without this: it adds copy buttons and a filter, and opens folded parts for print.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  const copied = async (text) => {
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    throw new Error("no clipboard");
  };
  for (const button of all("button.copy")) {
    const code = button.parentElement.querySelector("code");
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await copied(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  const form = document.getElementById("filter");
  const rows = all("tr.row");
  const differs = document.getElementById("differs");
  const filter = () => {
    const words = document.getElementById("find").value.toLowerCase().split(/\s+/).filter(Boolean);
    const parts = new Set(all("input[name=part]:checked", form).map((box) => box.value));
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase() + " " + row.closest("tbody").rows[0].textContent.toLowerCase();
      const fits = row.dataset.parts.split(" ").some((part) => parts.has(part))
        && words.every((word) => text.includes(word))
        && !(differs && differs.checked && row.dataset.differs === "no");
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    for (const body of all("table.requirements tbody")) {
      body.hidden = all("tr.row", body).every((row) => row.hidden);
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
  };
  form.hidden = rows.length === 0;
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();

  addEventListener("beforeprint", () => { for (const fold of all("details")) fold.open = true; });
})();
