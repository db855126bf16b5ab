// Equations: KaTeX renders what arithmatex has marked, from files of this site. The page "The paper beside the code"
// shows sources without a click. Both run again after instant navigation, where it is on.
const renderMath = () => {
  document.querySelectorAll(".arithmatex:not([data-rendered])").forEach((element) => {
    const source = element.textContent.trim();
    element.dataset.rendered = "yes";
    katex.render(source.slice(2, -2), element, { displayMode: source.startsWith("\\["), throwOnError: false });
  });
};
const openSources = () => {
  if (!location.pathname.includes("/paper/")) return;
  document.querySelectorAll(".doc-contents details").forEach((details) => { details.open = true; });
};
const decorate = () => { renderMath(); openSources(); };
decorate();
if (window.document$) window.document$.subscribe(decorate);
