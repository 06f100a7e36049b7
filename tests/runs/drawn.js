// Runs the scripts of a report with stand-ins for the page and for the class that draws, and prints what is drawn.
const [curves, drawing] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const drawn = {};
class Chart {
  constructor(options, data, place) {
    if (options.series.length !== data.length || !place.clientWidth) throw new Error(options.title);
    options.series.slice(1).forEach((series) => series.value(null, 0.25));
    drawn[options.title] = data.length;
  }
  setSize() {}
}
const start = drawing.lastIndexOf("// Draws the charts");
const page = {getElementById: () => ({textContent: curves, clientWidth: 300})};
const join = (tables) => [[], ...tables.map((table) => table[1])];
Chart.join = join;
new Function("document", "uPlot", "addEventListener", drawing.slice(start))(page, Chart, (_, resize) => resize());
console.log(JSON.stringify(drawn));
