// A slider for each grid of frames: shows one frame at a time. Without this script, all are shown.
for (const figure of document.querySelectorAll("figure.frames")) {
  const labels = figure.dataset.labels.split("|"), columns = Number(figure.dataset.columns);
  const rows = Math.ceil(labels.length / columns), window_ = figure.firstElementChild;
  const image = window_.firstElementChild;
  const slider = Object.assign(document.createElement("input"), {type: "range", min: 0, max: labels.length - 1, value: 0});
  const said = document.createElement("output");
  const show = () => {
    const k = Number(slider.value);
    image.style.transform = `translate(${(-100 * (k % columns)) / columns}%, ${(-100 * Math.floor(k / columns)) / rows}%)`;
    said.value = slider.ariaValueText = labels[k];
  };
  slider.ariaLabel = labels[0].replace(/ [^ ]*$/, "");
  slider.addEventListener("input", show);
  image.decode().catch(() => {}).then(() => {
    window_.style.aspectRatio = image.naturalWidth / columns / (image.naturalHeight / rows);
    window_.style.maxWidth = `${4 / 3 * image.getAttribute("width") / columns}px`; // one has more room than all
    image.style.width = `${100 * columns}%`;
    figure.classList.add("one");
    figure.prepend(slider, said);
    show();
  });
}
// The page that moves is as high as what it shows, and as light or dark as this one.
const moving = document.querySelectorAll("iframe.moving");
const tell = (frame) => frame.contentWindow.postMessage({ theme: document.documentElement.dataset.theme }, "*");
window.addEventListener("message", ({ source, data }) => {
  for (const frame of moving) {
    if (frame.contentWindow !== source || !(data.height > 0)) continue;
    frame.style.height = `${data.height}px`;
    tell(frame);
  }
});
new MutationObserver(() => moving.forEach(tell)).observe(document.documentElement, { attributeFilter: ["data-theme"] });
