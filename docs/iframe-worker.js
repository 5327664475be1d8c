// Browsers start no web worker from file://. There, the search of the site runs in a hidden frame.
// mkdocs.yml names this file as a polyfill; its name keeps the theme from loading one from another host.
if (location.protocol === "file:") {
  // As between a page and a worker: a copy, and later.
  const deliver = (data, to) => {
    const copy = structuredClone(data);
    setTimeout(() => to(copy), 0);
  };

  window.Worker = class {
    #waiting = [];
    #inside = null;
    #frame = document.createElement("iframe");

    constructor(url) {
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => deliver(data, (copy) => this.onmessage?.({ data: copy }));
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = () => {
        this.#inside = inside;
        for (const data of this.#waiting.splice(0)) this.postMessage(data);
      };
      script.onerror = () => this.onerror?.(new Event("error", { cancelable: true }));
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.#inside === null) this.#waiting.push(data);
      else deliver(data, (copy) => this.#inside.dispatchEvent(new MessageEvent("message", { data: copy })));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
