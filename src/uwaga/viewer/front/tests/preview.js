// Opens the explorer on the fake host; numbers in the URL are its options.

import { start } from "../main.js";
import { fakeHost } from "./fake_host.js";

const options = Object.fromEntries([...new URLSearchParams(location.search)].map(([name, value]) => [name, Number(value)]));
start(/** @type {HTMLElement} */ (document.getElementById("uwaga")), fakeHost(options));
