"use strict";
// Options for ECharts, made from the page's data; drawing, zoom, hover and legends are ECharts' own.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const byId = (id) => document.getElementById(id);
  const safe = (text) => echarts.format.encodeHTML(String(text));
  const digits = (value, count = 4) => String(Number(Number(value).toPrecision(count)));
  const charts = new Map();
  const PART_COLOURS = ["#0072B2", "#D55E00", "#F0E442", "#CC79A7", "#E69F00", "#009E73", "#999999"];
  // From idle, which is near the background, to full.
  const SHADES = {
    default: ["#e8f1f8", "#9ecae9", "#4292c6", "#0b6fb3", "#08306b"],
    dark: ["#1c2733", "#0b4f80", "#2f86c1", "#7fbbe6", "#d6ecfa"],
  };
  const IDLE = "#999999", DOWN = "#000000";
  const CLASSES = [[0.5, IDLE, 1], [50, "#56B4E9", 2], [90, "#0072B2", 3], [1e9, "#D55E00", 4]];

  const theme = () => (dark.matches ? "dark" : "default");
  const setTheme = (name) => {
    charts.forEach((made) => made.setTheme(name));
    if (charts.has("loads")) {
      charts.get("loads").setOption({ visualMap: { inRange: { color: SHADES[name] } } });
    }
  };

  const chart = (id, height, option) => {
    const place = byId(id);
    place.style.height = `${height}px`;
    let made = charts.get(id);
    if (!made) {
      made = echarts.init(place, theme(), { renderer: "svg" });
      charts.set(id, made);
    }
    made.resize();
    made.setOption({
      backgroundColor: "transparent", animation: false, ...option,
    }, true);
    return made;
  };
  const nameWidth = () => Math.min(230, document.body.clientWidth * 0.3);
  const grid = (top, bottom) => ({ left: nameWidth() + 14, right: 28, top, bottom });
  const namesAxis = (names) => ({
    type: "category", inverse: true, data: names, axisTick: { show: false },
    axisLabel: { width: nameWidth(), overflow: "breakAll", interval: 0, fontSize: 11, lineHeight: 12 },
  });
  const bars = (names) => ({
    grid: grid(36, 44), legend: { top: 0, type: "scroll" }, yAxis: namesAxis(names),
  });
  const only = (series, names) => series.filter((one) => names.includes(one.name));
  const heightOf = (count) => 86 + 26 * count;

  const throughput = () => {
    const rows = data.rows;
    chart("throughput", heightOf(rows.length), {
      ...bars(rows.map((row) => row.label)),
      xAxis: { type: "value", name: data.unit, nameLocation: "middle", nameGap: 26 },
      tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true },
      series: only([
        { name: "answer", type: "bar", color: "#56B4E9", data: rows.map((row) => row.rate) },
        {
          name: "P10 to P90", type: "boxplot", layout: "horizontal", boxWidth: [5, 9],
          itemStyle: { color: "#0072B2", borderColor: "#0072B2" }, tooltip: { show: false },
          data: rows.map((row) => (row.interval ? [row.interval[0], row.interval[0],
            row.interval[1], row.interval[2], row.interval[2]] : [])),
        },
        {
          name: "published", type: "scatter", symbol: "diamond", symbolSize: 12,
          itemStyle: { color: "transparent", borderColor: "#D55E00", borderWidth: 2 },
          data: rows.map((row) => (row.published === null ? "-" : row.published)),
        },
      ], ["answer", ...(rows.some((row) => row.interval) ? ["P10 to P90"] : []),
        ...(rows.some((row) => row.published !== null) ? ["published"] : [])]),
    });
  };
  const parts = () => {
    chart("parts", heightOf(data.rows.length), {
      ...bars(data.rows.map((row) => row.label)),
      xAxis: { type: "value", name: "ms", nameLocation: "middle", nameGap: 26 },
      tooltip: {
        trigger: "axis", axisPointer: { type: "shadow" }, confine: true,
        valueFormatter: (value) => `${digits(value)} ms`,
      },
      series: data.parts.map((name, number) => ({
        name, type: "bar", stack: "step", color: PART_COLOURS[number % PART_COLOURS.length],
        data: data.rows.map((row) => row.parts[number]),
      })),
    });
  };

  const table = (head, rows, caption) => {
    const cells = (row) => row.map((cell, column) => (column === 0
      ? `<th scope="row" class="left">${safe(cell)}</th>` : `<td>${safe(cell)}</td>`)).join("");
    return `<table><caption>${safe(caption)}</caption><thead><tr>${head.map((name, column) =>
      `<th scope="col"${column ? "" : ' class="left"'}>${safe(name)}</th>`).join("")}</tr></thead>`
      + `<tbody>${rows.map((row) => `<tr>${cells(row)}</tr>`).join("")}</tbody></table>`;
  };
  const present = (name, there) => {
    byId(`${name}-figure`).hidden = !there;
    byId(`${name}-none`).hidden = there;
    return there;
  };

  const causes = (row) => {
    if (!present("causes", row.causes.length > 0)) return;
    const side = (name, column, colour) => ({
      name, type: "bar", stack: "both", color: colour,
      data: row.causes.map((cause) => cause[column]),
    });
    chart("causes", heightOf(row.causes.length), {
      ...bars(row.causes.map((cause) => cause[0])),
      xAxis: { type: "value", name: `% of the row's ${data.unit}`, nameLocation: "middle", nameGap: 26 },
      tooltip: {
        confine: true,
        formatter: (point) => {
          const [name, ends, , , rates] = row.causes[point.dataIndex];
          return `<b>${safe(name)}</b><br>${safe(ends)}<br>${safe(rates)} ${data.unit}`;
        },
      },
      series: [side("parameter at its P10", 5, "#56B4E9"), side("at its P90", 6, "#D55E00")],
    });
    byId("causes-table").innerHTML = table(["parameter", "from P10 to P90", `${data.unit} at P10`,
      `${data.unit} at P90`], row.causes.map(([name, ends, low, high]) => [name, ends, low, high]),
    `Causes of the interval of ${row.label}`);
  };

  const timeline = (row) => {
    const { tracks, names, bars: spans, left_out: leftOut } = row.timeline;
    if (!present("timeline", spans.length > 0)) return;
    const draw = (params, api) => {
      const from = api.coord([api.value(1), api.value(0)]);
      const to = api.coord([api.value(2), api.value(0)]);
      const height = api.size([0, 1])[1] * 0.72;
      const shape = echarts.graphic.clipRectByRect({
        x: from[0], y: from[1] - height / 2, width: Math.max(to[0] - from[0], 0.6), height,
      }, params.coordSys);
      return shape && { type: "rect", shape, style: { fill: api.visual("color") } };
    };
    const kinds = Object.keys(data.kinds).filter((kind) => spans.some((span) => span[1] === kind));
    const made = chart("timeline", 130 + 30 * tracks.length, {
      grid: grid(36, 72),
      legend: { top: 0, type: "scroll" },
      xAxis: { type: "value", min: 0, max: row.step_ms, axisLabel: { hideOverlap: true, showMaxLabel: false, formatter: "{value} ms" } },
      yAxis: namesAxis(tracks),
      dataZoom: [{ type: "slider", xAxisIndex: 0, filterMode: "weakFilter", bottom: 8 },
        { type: "inside", xAxisIndex: 0, filterMode: "weakFilter" }],
      tooltip: {
        confine: true,
        formatter: ({ value, seriesName }) => `<b>${safe(names[value[3]])}</b><br>${seriesName}, `
          + `${safe(tracks[value[0]])}<br>${digits(value[1], 5)} to ${digits(value[2], 5)} ms `
          + `(${digits(value[2] - value[1], 3)} ms)`,
      },
      series: kinds.map((kind) => ({
        name: kind, type: "custom", renderItem: draw, color: data.kinds[kind], clip: true,
        itemStyle: { color: data.kinds[kind] }, encode: { x: [1, 2], y: 0 },
        data: spans.filter((span) => span[1] === kind)
          .map(([track, , name, start, end]) => [track, start, end, name]),
      })),
    });
    made.off("datazoom");
    made.on("datazoom", () => showWindow(row));
    showWindow(row);
    const sums = new Map();
    for (const [track, kind, , start, end] of spans) {
      const key = JSON.stringify([tracks[track], kind]);
      const [count, total] = sums.get(key) || [0, 0];
      sums.set(key, [count + 1, total + end - start]);
    }
    byId("timeline-table").innerHTML = table(["track and kind", "bars", "ms"],
      [...sums].map(([key, [count, total]]) => [JSON.parse(key).join(", "), count,
        digits(total)]),
      `Time by track and kind in ${row.label}${leftOut ? `; ${leftOut} short bars left out` : ""}`);
  };
  const zoomed = () => charts.get("timeline").getOption().dataZoom[0];
  const showWindow = (row) => {
    const { start, end } = zoomed();
    byId("window").textContent = `${digits(start * row.step_ms / 100)} to `
      + `${digits(end * row.step_ms / 100)} ms`;
  };
  const zoom = (how) => {
    const { start, end } = zoomed();
    const width = end - start, middle = (start + end) / 2;
    const [low, wide] = {
      in: [middle - width / 4, width / 2], out: [middle - width, 2 * width],
      left: [start - width / 4, width], right: [start + width / 4, width], all: [0, 100],
    }[how];
    const least = Math.min(Math.max(wide, 0.01), 100);
    const from = Math.min(Math.max(low, 0), 100 - least);
    charts.get("timeline").dispatchAction({ type: "dataZoom", start: from, end: from + least });
  };

  const loads = (row) => {
    if (!present("loads", row.loads.length > 0)) return;
    const draw = (params, api) => {
      const from = api.coord([api.value(1), api.value(0)]);
      const to = api.coord([api.value(2), api.value(0)]);
      const height = api.size([0, 1])[1] * 0.8;
      return {
        type: "rect", style: { fill: api.visual("color") },
        shape: { x: from[0], y: from[1] - height / 2, width: to[0] - from[0], height },
      };
    };
    const cells = row.loads.flatMap((load, number) => load.percent.map((percent, at) =>
      [number, load.times_ms[at], load.times_ms[at + 1], percent]));
    chart("loads", 120 + 22 * row.loads.length, {
      grid: grid(8, 66),
      xAxis: { type: "value", min: 0, max: row.step_ms, axisLabel: { hideOverlap: true, showMaxLabel: false, formatter: "{value} ms" } },
      yAxis: namesAxis(row.loads.map((load) => load.name)),
      visualMap: {
        min: 0, max: 100, dimension: 3, orient: "horizontal", left: "center", bottom: 0,
        inRange: { color: SHADES[theme()] }, text: ["100 % used", "0"], itemHeight: 90, calculable: false,
      },
      tooltip: {
        confine: true,
        formatter: ({ value }) => `<b>${safe(row.loads[value[0]].name)}</b><br>${value[3]} % used, `
          + `${digits(value[1])} to ${digits(value[2])} ms`,
      },
      series: [{ type: "custom", renderItem: draw, clip: true, encode: { x: [1, 2], y: 0 }, data: cells }],
    });
    byId("loads-table").innerHTML = table(["resource", "mean %", "peak %"], row.loads.map((load) => {
      const span = load.times_ms[load.times_ms.length - 1] - load.times_ms[0];
      const carried = load.percent.reduce((sum, percent, at) =>
        sum + percent * (load.times_ms[at + 1] - load.times_ms[at]), 0);
      return [load.name, (carried / span).toFixed(1), Math.max(...load.percent).toFixed(1)];
    }), `Used share of resources in ${row.label}`);
  };

  const fabric = (row) => {
    if (!present("fabric", Boolean(data.fabric))) return;
    const { nodes, cables } = data.fabric;
    const part = Number(byId("part").value);
    const known = new Map(row ? row.cables : []);
    const load = (cable) => {
      const shares = known.get(cable) || [0];
      return part === 0 ? shares.reduce((sum, one) => sum + one, 0) / shares.length
        : shares[part - 1] || 0;
    };
    byId("part-shown").textContent = part === 0 ? "mean of the step"
      : `${digits((part - 1) * row.step_ms / 24, 3)} to ${digits(part * row.step_ms / 24, 3)} ms`;
    const tiers = Math.max(...nodes.map((node) => node[2]));
    const number = new Map(nodes.map((node, at) => [node[4], at]));
    const longest = new Map();
    for (const node of nodes) longest.set(node[2], (longest.get(node[2]) || 0) + 1);
    const name = (at) => nodes[number.get(at)][0];
    const busy = cables.map((cable, at) => [cable, load(at)]);
    const height = 150 + 100 * tiers, width = byId("fabric").clientWidth;
    chart("fabric", height, {
      tooltip: {
        confine: true,
        formatter: ({ data: item }) => safe(item.words),
      },
      series: [{
        type: "graph", layout: "none", roam: true, left: 40, right: 40, top: 34, bottom: 34,
        scaleLimit: { min: 0.5, max: 20 }, emphasis: { focus: "adjacency" },
        data: nodes.map(([words, x, tier, isSwitch], at) => ({
          id: String(at), words, x: x * (width - 80), y: (1 - tier / tiers) * (height - 68), symbol: isSwitch ? "rect" : "circle",
          symbolSize: isSwitch ? 14 : 8, itemStyle: { color: isSwitch ? "#7f7f7f" : "#b5b5b5" },
          label: {
            show: longest.get(tier) <= innerWidth / 60, position: isSwitch ? "top" : "bottom",
            formatter: words.split("/")[0],
          },
        })),
        edges: busy.map(([[from, to, gbps, up], percent]) => {
          const [, colour, width] = CLASSES.find(([most]) => percent <= most);
          return {
            source: String(number.get(from)), target: String(number.get(to)),
            words: `${name(from)} – ${name(to)}, ${gbps} Gb/s: ${up ? `${percent.toFixed(0)} % used` : "down"}`,
            lineStyle: up ? { color: colour, width, opacity: 0.85 }
              : { color: DOWN, width: 1.5, type: "dashed" },
          };
        }),
      }],
    });
    busy.sort((one, other) => other[1] - one[1]);
    byId("fabric-table").innerHTML = table(["cable", "Gb/s", "% used"], busy.slice(0, 20).map(
      ([[from, to, gbps], percent]) => [`${name(from)} – ${name(to)}`, gbps, percent.toFixed(0)]),
    `Busiest cables, ${byId("part-shown").textContent}`);
  };

  const choice = byId("which");
  const current = () => data.details[choice.selectedIndex];
  const showRow = () => {
    const row = current();
    if (!row) {
      for (const name of ["causes", "timeline", "loads"]) present(name, false);
      fabric(null);
      return;
    }
    causes(row);
    timeline(row);
    loads(row);
    fabric(row);
  };
  const draw = () => { throughput(); parts(); showRow(); };

  for (const row of data.details) choice.add(new Option(row.label));
  byId("part").disabled = data.details.length === 0;
  choice.addEventListener("change", showRow);
  byId("part").addEventListener("input", () => fabric(current()));
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoom(button.dataset.zoom));
  }
  byId("timeline").addEventListener("keydown", (event) => {
    const how = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "-": "out", Home: "all" }[event.key];
    if (how) { zoom(how); event.preventDefault(); }
  });
  const fit = () => charts.forEach((made) => made.resize());
  addEventListener("resize", () => requestAnimationFrame(draw));
  dark.addEventListener("change", () => setTheme(theme()));
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details[data-print]")) each.open = true;
    setTheme("default");
    charts.forEach((made) => made.resize({ width: 680 }));
  });
  addEventListener("afterprint", () => {
    setTheme(theme());
    fit();
  });
  draw();
})();
