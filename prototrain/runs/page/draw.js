// Draws the charts of a report: the data is JSON in the element "curves".
const found = JSON.parse(document.getElementById("curves").textContent);
const colors = "#1f77b4 #ff7f0e #2ca02c #d62728 #9467bd #8c564b #e377c2 #7f7f7f #bcbd22 #17becf".split(" ");
const short = (value) => {
  if (value == null) return "";
  const number = Number(value.toPrecision(4)), size = Math.abs(number);
  return size >= 1e6 || (size > 0 && size < 1e-4) ? number.toExponential().replace("e+", "e") : String(number);
};
const dashes = [[], [6, 4], [2, 3]];
const borders = ["solid", "dashed", "dotted"];
for (const chart of found.charts) {
  const place = document.getElementById(chart.id);
  const lines = chart.lines.map((line) => ({
    label: line.label,
    stroke: colors[line.color % colors.length],
    dash: dashes[line.dash % dashes.length],
    width: line.pale ? 1 : 1.5,
    alpha: line.pale ? 0.3 : 1,
    points: {show: line.x.length < 2},
    value: (_, value) => short(value),
  }));
  const plot = new uPlot({
    title: chart.title,
    width: place.clientWidth,
    height: 260,
    scales: {x: {time: false}, y: {distr: chart.log ? 3 : 1}},
    axes: [{label: "step", labelSize: 20, size: 34}, {size: 64, values: (_, ticks) => ticks.map(short)}],
    series: [{label: "step"}, ...lines],
    legend: {markers: {dash: (_, series) => borders[(chart.lines[series - 1]?.dash ?? 0) % borders.length]}},
    cursor: {drag: {x: true, y: true, uni: 30}},
  }, uPlot.join(chart.lines.map((line) => [line.x, line.y])), place);
  addEventListener("resize", () => plot.setSize({width: place.clientWidth, height: 260}));
}
