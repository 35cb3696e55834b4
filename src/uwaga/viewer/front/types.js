// Types that all modules share, in JSDoc: import("../types.js").Name. No code.

/** @typedef {"encoder" | "decoder" | "cross"} Kind */
/** @typedef {"0" | "1" | "difference"} SideId */
/** @typedef {"overview" | "map" | "text" | "lines" | "table" | "lesson"} Tab */

/**
 * @typedef {object} Stack  the texts of one stack, counted
 * @property {number} tokens
 * @property {number} words
 * @property {number} specials
 */

/**
 * @typedef {object} Side  one recording, or the difference of both
 * @property {SideId} id
 * @property {string} title
 * @property {string} model
 * @property {string} text_title
 * @property {boolean} signed  its weights may be negative
 * @property {{kind: Kind, layer: number, heads: number}[]} maps  sorted
 * @property {{[stack: string]: Stack}} stacks
 * @property {{[kind: string]: {queries: string, keys: string}}} kinds  which stack stands on which axis
 */

/** @typedef {[number, number]} Range  of tokens or items: first, one past the last */

/** @typedef {{name: string, title: string, meaning: string}} StatisticInfo */

/**
 * @typedef {object} About
 * @property {string} version
 * @property {string} title
 * @property {number} tile  cells of a tile's side
 * @property {number} overview  cells of a small map's side, at most
 * @property {boolean} lesson
 * @property {boolean} live  more can be computed; false in a saved page
 * @property {StatisticInfo[]} statistics
 * @property {Side[]} sides  none: the lesson alone
 * @property {{side: SideId, kind: Kind, layer: number, head: number} | null} start  null without sides
 */

/** @typedef {{[key: string]: any, ask: string}} Question */

/** @typedef {Float32Array | Int32Array | Uint8Array} WireData */
/** @typedef {{data: WireData, shape: number[]}} WireArray */
/** @typedef {{meta: {[key: string]: any}, arrays: WireArray[]}} Reply */

/**
 * @typedef {object} Where  the arguments that name one map of one head
 * @property {SideId} side
 * @property {Kind} kind
 * @property {number} layer
 * @property {number} head
 * @property {"tokens" | "words"} merge
 * @property {"show" | "hide"} specials
 */

/**
 * @typedef {object} Colour
 * @property {boolean} log  colours by the logarithm of the weight
 * @property {number} low  the weight (or logarithm's floor) that gets the first colour
 * @property {number | null} high  the weight that gets the last colour; null: the largest in view
 * @property {number} threshold  weights below it are drawn as zero
 * @property {boolean} hideSink  the first key is drawn as zero
 * @property {string} scheme  a name of colourSchemes()
 */

/**
 * @typedef {object} ViewBox
 * @property {number} x  item at the left edge
 * @property {number} y  item at the top edge
 * @property {number} scale  CSS pixels per item; 0: the whole map fits
 */

/**
 * @typedef {object} State
 * @property {SideId} side  what is shown, or the active one of both; "difference" exactly when compare is
 * @property {Kind} kind
 * @property {number} layer
 * @property {number} head
 * @property {"mass" | "max"} how
 * @property {"tokens" | "words"} merge
 * @property {"show" | "hide"} specials
 * @property {Tab} tab
 * @property {"one" | "both" | "difference"} compare
 * @property {number | null} query  the picked item of the query axis
 * @property {number | null} key
 * @property {[number, number] | null} span  of queries: first, one past the last
 * @property {[number, number] | null} keySpan
 * @property {ViewBox} view
 * @property {Colour} colour
 * @property {"auto" | "light" | "dark"} theme
 * @property {boolean} dark  what the theme comes to now; the page keeps it
 * @property {boolean} shortcuts  keys without Ctrl or Alt run commands
 * @property {"row" | "column" | "both"} textDirection  what the text shows of a picked token: its row, its column
 * @property {boolean} linesAll  lines of all heads of the layer
 * @property {number} linesThreshold  which of the least weights that lines may have
 * @property {"all" | "head"} overviewScale  small maps share their colours, or each has its own
 */

/**
 * @typedef {object} Store
 * @property {() => Readonly<State>} get
 * @property {(partial: Partial<State>) => void} set
 * @property {(keys: (keyof State)[], listener: (state: Readonly<State>, changed: Set<string>) => void) => () => void} subscribe
 *   an empty list: every key. Returns what ends it.
 */

/**
 * @typedef {object} Command
 * @property {string} id
 * @property {string} title
 * @property {string[]} keys  such as "h", "Shift+ArrowUp", "?"; none: only by name
 * @property {string} group  heading in the help
 * @property {(event?: KeyboardEvent) => void} run
 * @property {() => boolean} [when]  whether it can run now
 */

/**
 * @typedef {object} Commands
 * @property {(command: Command) => () => void} add  returns what removes it
 * @property {(id: string) => boolean} run  false: no such command, or not now
 * @property {(event: KeyboardEvent) => boolean} handle  true: a command ran
 * @property {() => Command[]} list
 */

/**
 * @typedef {object} Host
 * @property {"served" | "notebook" | "saved"} mode
 * @property {(question: Question, signal?: AbortSignal) => Promise<Reply>} ask  rejects with HostError or AbortError
 * @property {(question: Question) => boolean} has
 * @property {(name: string, blob: Blob) => void} download
 * @property {() => void} [dispose]
 */

/** @typedef {{signal?: AbortSignal, priority?: number}} AskOptions  higher priorities first; 0 unless told */

/**
 * @typedef {object} Client
 * @property {(question: Question, options?: AskOptions) => Promise<Reply>} ask
 * @property {(question: Question, onReply: (reply: Reply) => void, options?: AskOptions) => Promise<void>} follow
 *   ends when the reply is complete or the signal aborts; rejects with what the host refuses
 * @property {(question: Question) => Reply | undefined} peek
 * @property {(ask: string) => Question[]} kept  the questions of one kind whose complete replies are in the cache
 * @property {(listener: (event: ClientEvent) => void) => () => void} subscribe
 * @property {() => void} dispose  gives up everything in flight
 */

/**
 * @typedef {{type: "unreachable"} | {type: "slow"} | {type: "recovered"} | {type: "failed", message: string} | {type: "busy",
 *   inFlight: number}} ClientEvent
 */

/**
 * @typedef {object} Items  the items of one axis
 * @property {string[]} labels
 * @property {number[]} glued  1: no space before it
 * @property {Set<number>} specials
 * @property {Int32Array} spans  (total, 2): the token range of each
 * @property {number} total
 */

/**
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {() => void} show
 * @property {() => void} hide
 * @property {() => void} dispose
 * @property {() => Promise<Scene>} [scene]
 * @property {() => {rows: [number, number], columns: [number, number]} | null} [block]  the queries and keys in view
 */

/**
 * @typedef {object} App
 * @property {Client} client
 * @property {Host} host
 * @property {About} about
 * @property {Store} store
 * @property {Commands} commands
 * @property {HTMLElement} root
 * @property {(side: SideId, stack: string, as?: {merge: string, specials: string}) => Promise<Items>} items
 *   as the store's merge and specials say, unless told
 * @property {() => {queries: number, keys: number}} sizes  items of the current map's axes
 * @property {() => Where} where
 * @property {(id?: SideId) => Side} side  by default the store's
 * @property {(text: string) => void} announce  for screen readers
 * @property {(text: string) => void} status
 * @property {(message: string) => void} fail  an error, in words, that can be dismissed
 * @property {(side: SideId, kind: Kind, layer: number, head: number) => void} openHead  in the map
 * @property {() => "light" | "dark"} theme  what "auto" comes to now
 * @property {string} idPrefix  before the ids of elements: "", or which part of the page they are in
 */

/**
 * @typedef {(
 *   {kind: "rect", x: number, y: number, w: number, h: number, fill: string, stroke?: string} |
 *   {kind: "line", x1: number, y1: number, x2: number, y2: number, stroke: string, width: number, opacity: number} |
 *   {kind: "path", d: (string | number)[][], stroke: string, width: number, opacity: number, fill?: string} |
 *   {kind: "text", x: number, y: number, text: string, size: number, anchor: "start" | "middle" | "end", fill: string,
 *    rotate?: number} |
 *   {kind: "image", x: number, y: number, w: number, h: number, pixels: Uint8ClampedArray, columns: number, rows: number}
 * )} SceneItem
 */

/** @typedef {{width: number, height: number, background: string, items: SceneItem[]}} Scene  CSS pixels; y grows down */

export {};
