// The site is complete without this: it filters rows and columns, and keeps what is asked for in the URL.
"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const form = document.getElementById("filter");
  const fields = all("input[name]", form);
  const words = (name) => ((form.elements[name] && form.elements[name].value) || "").toLowerCase().split(/\s+/).filter(Boolean);
  const wanted = (name) => Boolean(form.elements[name] && form.elements[name].checked);

  const remember = () => {
    const query = new URLSearchParams();
    for (const { name, type, value, checked } of fields) {
      if (type === "checkbox" ? checked : value) query.set(name, type === "checkbox" ? "1" : value);
    }
    const asked = query.toString();
    history.replaceState(null, "", `${location.pathname}${asked ? `?${asked}` : ""}${location.hash}`);
  };
  const rows = all("tbody tr[data-text]").map((row) => ({ row, text: row.dataset.text.toLowerCase() }));
  const columns = all("thead th[data-text]").map((head) => ({ head, text: head.dataset.text.toLowerCase() }));
  const filter = () => {
    const find = words("find"), subjects = words("subjects");
    for (const { head, text } of columns) {
      const hidden = !subjects.every((word) => text.includes(word));
      const table = head.closest("table"), place = head.cellIndex;
      for (const row of table.rows) if (row.cells[place]) row.cells[place].hidden = hidden;
    }
    const fails = (row) => columns.length ? [...row.cells].some((cell) => !cell.hidden && cell.matches(".v-fail")) : "failing" in row.dataset;
    let shown = 0;
    for (const { row, text } of rows) {
      const fits = find.every((word) => text.includes(word))
        && (!wanted("failing") || fails(row)) && (!wanted("changed") || "changed" in row.dataset);
      row.hidden = !fits;
      shown += fits ? 1 : 0;
    }
    for (const part of all("details[data-part]")) {
      const left = all("tbody tr", part).some((row) => !row.hidden);
      part.hidden = !left;
      if (left && (find.length || wanted("failing") || wanted("changed"))) part.open = true;
    }
    document.getElementById("shown").textContent = `${shown} of ${rows.length} shown`;
  };
  const query = new URLSearchParams(location.search);
  for (const field of fields) {
    if (field.type === "checkbox") field.checked = query.has(field.name);
    else field.value = query.get(field.name) || "";
  }
  form.hidden = false;
  form.addEventListener("input", () => { filter(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  filter();

  const open = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
    if (target) target.scrollIntoView({ block: "center" });
  };
  addEventListener("hashchange", open);
  if (location.hash) open();
  addEventListener("beforeprint", () => { for (const part of all("details")) part.open = true; });
})();
