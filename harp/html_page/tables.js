"use strict";
// Draws the charts whose options the page holds; all drawing is ECharts' own.
(() => {
  const options = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const charts = Object.entries(options).map(([id, option]) => {
    const made = echarts.init(document.getElementById(id), dark.matches ? "dark" : null,
      { renderer: "svg" });
    made.setOption({ backgroundColor: "transparent", animation: false, ...option });
    return made;
  });
  const each = (change) => charts.forEach(change);
  const theme = () => each((made) => made.setTheme(dark.matches ? "dark" : "default"));
  addEventListener("resize", () => requestAnimationFrame(() => each((made) => made.resize())));
  dark.addEventListener("change", theme);
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details[data-print]")) one.open = true;
    each((made) => { made.setTheme("default"); made.resize({ width: 680 }); });
  });
  addEventListener("afterprint", () => { theme(); each((made) => made.resize()); });
})();
