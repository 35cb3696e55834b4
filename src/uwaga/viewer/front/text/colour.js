// Colours of the theme as a canvas takes them.

/**
 * A colour of the theme as a canvas takes it.
 * @param {Element} element
 * @param {string} name  a custom property
 * @returns {string}
 */
export function stripColour(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim() || "#888";
}
