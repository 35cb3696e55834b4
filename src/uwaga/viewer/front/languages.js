// The page's messages in its language: gettext's tables, which the program puts into the page (uwaga/viewer/languages). English stands
// in the source; a message that a table lacks is shown in English.

/** @typedef {{language: string, messages: {[english: string]: string[]}, names?: {[code: string]: string}}} LanguageTable */

/** @type {LanguageTable} */
const pageLanguage = languageOfPage();
const pluralRules = new Intl.PluralRules(pageLanguage.language);
/** The forms of a language in the order of its table. */
const pluralOrder = ["zero", "one", "two", "few", "many", "other"].filter((form) => pluralRules.resolvedOptions().pluralCategories.some((one) => one === form));

/** @returns {LanguageTable} */
function languageOfPage() {
  const table = /** @type {{uwagaLanguage?: LanguageTable}} */ (globalThis).uwagaLanguage;
  if (table) return table;
  const element = typeof document === "undefined" ? null : document.querySelector("script[data-uwaga-language]");
  return element ? JSON.parse(element.textContent ?? "") : { language: "en", messages: {} };
}

/** The language of the page, and whether another can be chosen. */
export function currentLanguage() {
  return pageLanguage;
}

/** What a request for texts names: English is left out. @returns {{language?: string}} */
export function languageOfRequest() {
  return pageLanguage.language === "en" ? {} : { language: pageLanguage.language };
}

/**
 * A message in the page's language, with the values in its braces.
 * @param {string} message @param {{[name: string]: unknown}} [values] @returns {string}
 */
export function tr(message, values) {
  const translated = Object.hasOwn(pageLanguage.messages, message) ? pageLanguage.messages[message][0] : message;
  return values ? fillMessage(translated, values) : translated;
}

/**
 * A message in the form that the page's language has for a count, which is {count} in it.
 * @param {string} one @param {string} other @param {number} count @param {{[name: string]: unknown}} [values] @returns {string}
 */
export function trN(one, other, count, values) {
  const forms = Object.hasOwn(pageLanguage.messages, one) ? pageLanguage.messages[one] : null;
  const at = pluralOrder.indexOf(pluralRules.select(count));
  const translated = forms ? forms[Math.min(at, forms.length - 1)] : count === 1 ? one : other;
  return fillMessage(translated, { count, ...values });
}

/** @param {string} message @param {{[name: string]: unknown}} values */
function fillMessage(message, values) {
  return message.replace(/\{(\w+)\}/g, (whole, name) => (Object.hasOwn(values, name) ? valueText(values[name]) : whole));
}

/** @param {unknown} value @returns {string} */
function valueText(value) {
  return Number.isInteger(value) ? decimalText(/** @type {number} */ (value), 0) : String(value);
}

/** @type {Map<number, Intl.NumberFormat>} */
const numberFormats = new Map();

/**
 * A number with some decimals as the page's language writes it, with a minus sign (U+2212).
 * @param {number} value  finite, below 1e21
 * @param {number} digits @returns {string}
 */
export function decimalText(value, digits) {
  let format = numberFormats.get(digits);
  if (!format) {
    format = new Intl.NumberFormat(pageLanguage.language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
    numberFormats.set(digits, format);
  }
  // Rounded by toFixed, which takes the number as it is; Intl rounds its shortest decimal, 1.005 to 1.01.
  const rounded = /** @type {Intl.StringNumericLiteral} */ (value.toFixed(digits).replace(/^-(?=[0.]+$)/, ""));
  return format.format(rounded).replace("-", "\u2212");
}

/**
 * A number as a power of ten: 1.50\u00d710\u207b\u2077.
 * @param {number} value  not 0
 * @param {number} digits  decimals of the factor
 * @returns {string}
 */
export function powerText(value, digits) {
  const [factor, power] = value.toExponential(digits).split("e");
  const raised = String(Number(power)).replace(/./g, (sign) => "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"["-0123456789".indexOf(sign)]);
  return `${decimalText(Number(factor), digits)}\u00d710${raised}`;
}

/**
 * A message with its values' names apart from the text between them.
 * @param {string} message
 * @returns {{text: string, name: string}[]}  one of the two is empty
 */
export function splitMessage(message) {
  return message.split(/\{(\w+)\}/).map((part, at) => (at % 2 ? { text: "", name: part } : { text: part, name: "" }));
}

/**
 * A message whose values may be elements, as the children of one.
 * @param {string} message @param {{[name: string]: Node | string | number}} values @returns {(Node | string)[]}
 */
export function trParts(message, values) {
  return filledParts(tr(message), values);
}

/** @param {string} message @param {{[name: string]: Node | string | number}} values */
function filledParts(message, values) {
  return splitMessage(message).filter(({ text, name }) => text || name).map(({ text, name }) => {
    const value = values[name];
    return !name ? text : typeof value === "object" ? value : valueText(value);
  });
}
