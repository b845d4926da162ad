// Charts, filters of rows, sorting of tables, and loading a page of a run that goes on again.
const all = (selector, place = document) => [...place.querySelectorAll(selector)];
const soft = "var(--soft)";
const config = {
  background: "transparent",
  font: "system-ui, sans-serif",
  view: { stroke: "transparent" },
  axis: { labelSeparation: 8, labelColor: soft, titleColor: soft, domainColor: soft, tickColor: soft, gridColor: "var(--grid)", titleFontWeight: "normal", labelFontSize: 12, titleFontSize: 12 },
  legend: { labelColor: "var(--ink)", labelFontSize: 12, symbolType: "stroke", symbolStrokeWidth: 3 },
  line: { strokeWidth: 2 },
};

// As wide as on paper, where all figures have their columns of legends as well.
const widest = (figure) => (figure.closest(".charts") ? 270 : 900);

function draw(figure) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  const scale = figure.querySelector("input.log")?.checked ? { type: "log", nice: false } : null;
  if (scale) {
    spec.encoding.y.scale = scale;
    spec.transform = [{ filter: "datum.y > 0" }];
  }
  const place = figure.querySelector(".chart");
  const groups = spec.encoding?.color?.scale?.domain ?? [];
  const width = Math.min(place.clientWidth || Infinity, widest(figure));
  const columns = Math.max(1, Math.floor(width / (40 + 7 * Math.max(...groups.map((each) => each.length), 0))));
  for (const channel of ["color", "strokeDash"]) if (spec.encoding?.[channel]?.legend) Object.assign(spec.encoding[channel].legend, { columns, labelLimit: width - 60 });
  for (const { axis } of (spec.layer ?? []).map((each) => each.encoding.y ?? {}).filter((each) => each.axis))
    Object.assign(axis, { labelLimit: 0.45 * width }, width < 500 ? { labelExpr: "split(datum.label, ': ')", labelOffset: -7 } : {});
  if (spec.layer && width < 500) spec.height *= 1.2;
  vegaEmbed(place, spec, { actions: false, renderer: "svg", ast: true, config }).then(({ view }) => (figure.view = view));
}
all("figure.drawn").forEach((figure) => {
  draw(figure);
  figure.querySelector("input.log")?.addEventListener("change", () => draw(figure));
});
// A chart in a folded section has no width before it is opened.
let printing = false;
const fit = () => printing || window.dispatchEvent(new Event("resize"));
all("details").forEach((each) => each.addEventListener("toggle", fit));
window.addEventListener("beforeprint", () => {
  printing = true;
  all("details").forEach((each) => (each.open = !each.closest("figure")));
  all("figure.drawn").forEach((figure) => figure.view?.width(widest(figure)).run());
});
window.addEventListener("afterprint", () => { printing = false; fit(); });

all(".rows").forEach((place) => {
  const [wrong, label] = [place.querySelector(".only-wrong"), place.querySelector("select")];
  const items = all("li", place);
  let cell = "";
  const filter = () => {
    let shown = 0;
    for (const item of items) {
      const fits = (!wrong.checked || item.classList.contains("wrong")) && (!label?.value || JSON.parse(item.dataset.labels).includes(label.value)) && (!cell || item.dataset.cell === cell);
      item.hidden = !fits || (++shown > 10 && !place.classList.contains("whole-list"));
    }
    const count = items.filter((item) => !item.hidden).length;
    place.querySelector(".count").textContent = `${count} of ${shown} rows${cell ? ": " + JSON.parse(cell).join(" taken for ") : ""}`;
    place.querySelector("button").hidden = count === shown && !cell;
  };
  place.querySelector("button").addEventListener("click", () => {
    cell = "";
    place.classList.add("whole-list");
    filter();
  });
  [wrong, label].forEach((each) => each?.addEventListener("change", () => { cell = ""; filter(); }));
  all("[data-goto]", place.parentElement).forEach((each) => each.addEventListener("click", () => {
    cell = each.dataset.goto;
    wrong.checked = false;
    if (label) label.value = "";
    filter();
    place.scrollIntoView();
  }));
  window.addEventListener("beforeprint", () => items.forEach((item) => (item.hidden = false)));
  filter();
});

all("table.sortable th").forEach((head) => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0];
  const column = [...head.parentElement.children].indexOf(head);
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  all("th", head.parentElement).forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const key = (row) => row.children[column].dataset.value ?? row.children[column].textContent;
  const compare = (a, b) => (isNaN(a) || isNaN(b) || !a || !b ? a.localeCompare(b) : a - b);
  body.append(...[...body.rows].sort((a, b) => sign * compare(key(a), key(b))));
}));

if (Number(document.body.dataset.refresh)) setTimeout(() => location.reload(), 1000 * document.body.dataset.refresh);
