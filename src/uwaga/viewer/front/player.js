// What is shown step by step: films, words that are written, parts that light up.

/**
 * @param {number} time  milliseconds of a step
 * @param {(step: number) => void} show  stops the player behind the last step
 * @returns {{isOn: () => boolean, start: (step?: number) => void, stop: () => void}}
 */
export function makePlayer(time, show) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const player = {
    isOn: () => timer !== undefined,
    start(step = 0) {
      // It waits for who sees it.
      timer = setTimeout(() => player.start(document.hidden ? step : step + 1), time);
      show(step);
    },
    stop() {
      clearTimeout(timer);
      timer = undefined;
    },
  };
  return player;
}
