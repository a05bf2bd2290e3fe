(() => {
  const svg = document.getElementById("matrix");
  const out = document.getElementById("readout");
  if (!svg || !out) return;
  const names = JSON.parse(svg.dataset.names);
  const bytes = atob(svg.dataset.values);
  const count = names.length;
  const area = svg.querySelector(".area");
  const lines = svg.querySelectorAll(".cross");
  const hint = out.textContent;
  out.hidden = false;
  const value = (i, j) => {
    if (i === j) return "itself";
    const [a, b] = i < j ? [i, j] : [j, i];
    const byte = bytes.charCodeAt(a * count - (a * (a + 1)) / 2 + (b - a - 1));
    const signed = byte > 127 ? byte - 256 : byte;
    return signed === 127 ? "unknown" : (signed / 100).toFixed(2).replace("-", "\u2212");
  };
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    const at = (part) => Math.min(count - 1, Math.max(0, Math.floor(part * count)));
    const j = at((event.clientX - box.left) / box.width);
    const i = at((event.clientY - box.top) / box.height);
    out.textContent = `${names[i]} and ${names[j]}: ${value(i, j)}`;
    const left = Number(area.getAttribute("x")), top = Number(area.getAttribute("y"));
    const side = Number(area.getAttribute("width"));
    lines[0].setAttribute("x1", left + (j + 0.5) * side / count);
    lines[0].setAttribute("x2", left + (j + 0.5) * side / count);
    lines[1].setAttribute("y1", top + (i + 0.5) * side / count);
    lines[1].setAttribute("y2", top + (i + 0.5) * side / count);
    lines.forEach((line) => line.classList.add("on"));
  });
  area.addEventListener("pointerleave", () => {
    out.textContent = hint;
    lines.forEach((line) => line.classList.remove("on"));
  });
})();
