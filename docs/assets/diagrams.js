// Draws the diagrams of a page. Mermaid comes from this site, and only to pages that have a diagram.
const found = [...document.querySelectorAll("pre.diagram")];

if (found.length) {
  const { mermaid } = await import(new URL("mermaid/index.js", import.meta.url).href);
  const boxes = found.map((pre) => {
    const box = document.createElement("div");
    box.className = "diagram";
    box.dataset.source = pre.textContent;
    pre.replaceWith(box);
    return box;
  });

  let drawn = 0;
  const draw = async () => {
    const dark = document.body.dataset.mdColorScheme === "slate";
    mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "neutral", fontFamily: "inherit" });
    for (const box of boxes) {
      box.innerHTML = (await mermaid.render(`diagram-${drawn++}`, box.dataset.source)).svg;
    }
  };

  await draw();
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
}
