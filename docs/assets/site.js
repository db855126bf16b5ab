// The page "The paper beside the code" shows sources without a click. Rerun after instant navigation, where it is on.
const openSources = () => {
  if (!location.pathname.includes("/paper/")) return;
  document.querySelectorAll(".doc-contents details").forEach((details) => { details.open = true; });
};
openSources();
if (window.document$) window.document$.subscribe(openSources);

window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
};
