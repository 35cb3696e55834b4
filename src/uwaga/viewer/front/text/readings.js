// The weights that the text view shows at the moment: asked for, followed while they grow, given up when no longer wanted.
import { columnWeights, rowWeights } from "./source.js";

/** @typedef {import("../types.js").App} App */
/** @typedef {import("./source.js").Weights} Weights */

/** One row or one column, the latest that was wanted. */
export class TextReading {
  /**
   * @param {App} app
   * @param {"row" | "column"} which
   * @param {() => void} onChange
   */
  constructor(app, which, onChange) {
    this.app = app;
    this.which = which;
    this.onChange = onChange;
    /** @type {Weights | null} */
    this.weights = null;
    this.absent = false; // this page does not hold it
    this.name = "";
    this.controller = new AbortController();
  }

  /** @param {number | null} item */
  want(item) {
    const { app } = this;
    const [where, sizes] = [app.where(), app.sizes()];
    const outside = item === null || item >= (this.which === "row" ? sizes.queries : sizes.keys);
    const name = outside ? "" : JSON.stringify([where, item]);
    if (name === this.name) return;
    this.drop();
    this.name = name;
    if (outside) return;
    const { signal } = this.controller;
    const read = this.which === "row" ? rowWeights : columnWeights;
    read(app, item, { where, sizes, signal, onWeights: (weights) => {
      if (signal.aborted) return;
      this.weights = weights;
      this.absent = weights === null;
      this.onChange();
    } }).catch(() => {
      // The client has told the user why; asking again shall be possible.
      if (this.name === name) this.name = "";
    });
  }

  drop() {
    this.controller.abort();
    this.controller = new AbortController();
    this.weights = null;
    this.absent = false;
    this.name = "";
  }
}
