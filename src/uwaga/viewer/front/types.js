// Types that all modules share, in JSDoc: Name. No code.

/** @import { Name } from "../types.js" */
/** @import { Session } from "./typing/session.js" */

/** @typedef {"encoder" | "decoder" | "cross"} Kind */
/** @typedef {"0" | "1" | "difference"} SideId */
/** @typedef {"answer" | "picture" | "explore" | "overview" | "table" | "lesson"} Tab */

/**
 * @typedef {object} Stack  sizes of the text of one stack (encoder or decoder)
 * @property {number} tokens
 * @property {number} words
 * @property {number} specials
 * @property {number} [unknown]  tokens for what the vocabulary lacks
 * @property {string} [unknown_token]  how that token is written
 */

/**
 * @typedef {object} Side  one recording, or the difference of both
 * @property {SideId} id
 * @property {string} title
 * @property {string} model
 * @property {string} text_title
 * @property {boolean} signed  its weights may be negative
 * @property {{kind: Kind, layer: number, heads: number, sees?: [number | null, number | null] | null}[]} maps  sorted; sees: how many tokens before
 *   and after its own a query may look at, null for any number
 * @property {{[stack: string]: Stack}} stacks
 * @property {{[kind: string]: {queries: string, keys: string}}} kinds  which stack is on which axis
 */

/** @typedef {[number, number]} Range  of tokens or items: first, one past the last */

/** @typedef {{name: string, title: string, meaning: string}} StatisticInfo */

/**
 * @typedef {object} About
 * @property {string} title
 * @property {number} tile  side of a tile in cells
 * @property {boolean} lesson  whether this page has it
 * @property {boolean} live  the host can compute more; false in a saved page
 * @property {string} [opens]  of a saved page: what it shows first, as in an address; "": what it chooses
 * @property {string} [left_out]  of a saved page: what did not fit into it, in sentences; "": nothing
 * @property {StatisticInfo[]} statistics
 * @property {Side[]} sides  empty: only the lesson is shown
 * @property {{side: SideId, kind: Kind, layer: number, head: number, merge?: "tokens" | "words"} | null} start  null without sides; merge: words, for a short text
 * @property {number} [run]  the number of the text
 * @property {Typing | null} [typing]  null: no text can be run
 * @property {RunRequest | null} [typed]  the text, if the page may run it again
 * @property {string} [python]  the line that makes the changes; "" without changes
 * @property {{[side: string]: {kind: "next" | "masked", stack: string, tokens: number}}} [predictions]
 * @property {{[side: string]: string}} [why]  why scores of a side cannot be split; "": they can
 * @property {Answer} [answer]  what a database says to a question; the page opens with it
 * @property {PictureInfo} [picture]  what a model of pictures saw; the page opens with it
 * @property {number | null} [similarity]  the cosine of the vectors of both sides
 */

/**
 * @typedef {object} Answer
 * @property {string} question
 * @property {{key: number, share: number, text: string, origin: string}[]} passages  in order of their shares
 * @property {number} others  passages that are not listed
 * @property {number} unlisted  their share
 */

/** @typedef {{rows: number, columns: number, first: number}} PatchGrid  patches are tokens from `first` on, row by row */
/** @typedef {{width: number, height: number, grids: {[kind: string]: PatchGrid}}} PictureInfo */

/**
 * @typedef {object} Typing  what a text box needs to know
 * @property {string[]} boxes  "text", and perhaps "second" and "target"
 * @property {string[]} examples
 * @property {[string, string, string][]} [pairs]  an example, a word of it, and another that it may be changed into
 * @property {string} model
 * @property {string} command  of the command line, with TEXT in the text's place
 * @property {number} max_tokens
 * @property {number} max_characters
 * @property {number} max_seconds
 * @property {boolean} editable  heads can be switched off
 */

/** @typedef {{name: string, kind: string | null, layer: number | null, head: number | null}} WhyPart  as uwaga.inspect.Part describes it */
/** @typedef {{to: number, token: number, label: string, share: number}} WhySource  the token from which a head brought most, and the one that it brought it to */

/**
 * @typedef {object} Why  a score, or the difference of the scores of two keys, as a sum
 * @property {[number, number, number | null]} tokens  the query, the key, the other key
 * @property {[string, string, string | null]} labels
 * @property {[number, number | null]} weights  of the key, of the other key
 * @property {number} score  as the model has computed it
 * @property {number} total  the sum of all pairs
 * @property {number} count  of all contributions
 * @property {{query: WhyPart, key: WhyPart, share: number, sources: (WhySource | null)[]}[]} shares  the strongest
 * @property {number} rest  the sum of the others
 */

/** @typedef {{text: string, second: string | null, target: string | null, edits: Edits | null, long?: "first"}} RunRequest  long: how a text is read that is too long for the model */

/** @typedef {{kind: string, layer: number, head: number, queries: number[] | null, keys: number[] | null}} Links */

/**
 * @typedef {object} Edits  changes of a model, as uwaga.inspect.edits.Edits describes them
 * @property {{kind: string, layer: number, head: number, value: number | "mean"}[]} heads
 * @property {Links[]} scores  cut before the softmax
 * @property {(Links & {factor: number})[]} weights  multiplied after it
 */

/** @typedef {{[key: string]: any, request: string}} Request */

/** @typedef {Float32Array | Int32Array | Uint8Array} WireData */
/** @typedef {{data: WireData, shape: number[]}} WireArray */
/** @typedef {{meta: {[key: string]: any}, arrays: WireArray[]}} Reply */

/**
 * @typedef {object} Where  the arguments that identify one map of one head
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
 * @property {number} low  the weight of the first colour (on a logarithmic scale 0 means high / 10^4)
 * @property {number | null} high  the weight of the last colour; null: chosen from the weights in view
 * @property {number} threshold  weights below it are drawn as zero
 * @property {boolean} hideSink  weight on sinks (weights.js) is a grey bar and not a colour
 * @property {string} scheme  a name from colourSchemes()
 */

/**
 * @typedef {object} ViewBox
 * @property {number} x  item at the left edge
 * @property {number} y  item at the top edge
 * @property {number} scale  CSS pixels per item; 0: the whole map fits
 */

/**
 * @typedef {object} State
 * @property {SideId} side  the side shown, or the active one of both; "difference" if and only if compare is "difference"
 * @property {Kind} kind
 * @property {number} layer
 * @property {number} head
 * @property {boolean} mean  of a picture the mean of the heads, not one
 * @property {"sum" | "max"} pooling
 * @property {"tokens" | "words"} merge
 * @property {"show" | "hide"} specials
 * @property {Tab} tab
 * @property {"one" | "both" | "difference"} compare
 * @property {number | null} query  the selected item of the query axis
 * @property {number | null} key
 * @property {boolean} wide  the map has the whole width of the page
 * @property {ViewBox} view  of the map
 * @property {Colour} colour
 * @property {"auto" | "light" | "dark"} theme
 * @property {boolean} dark  whether the resolved theme is dark; derived, not set by the user
 * @property {boolean} shortcuts  keys without Ctrl or Alt run commands
 * @property {string} step  the lesson's step by its id; "": the first
 * @property {string} example  the lesson's request as JSON, where its numbers were changed; else ""
 * @property {"all" | "head"} overviewScale  one colour scale for all small maps, or one per head
 */

/**
 * @typedef {object} Store
 * @property {() => Readonly<State>} get
 * @property {(partial: Partial<State>) => void} set
 * @property {(keys: (keyof State)[], listener: (state: Readonly<State>, changed: Set<string>) => void) => () => void} subscribe
 *   an empty list: every key. Returns the unsubscribe function.
 */

/**
 * @typedef {object} Command
 * @property {string} id
 * @property {string} title
 * @property {string[]} keys  such as "h", "Shift+ArrowUp", "?"; empty: only by id
 * @property {string} group  heading in the help dialog
 * @property {(event?: KeyboardEvent) => void} run
 * @property {() => boolean} [when]  whether it can run now
 */

/**
 * @typedef {object} Commands
 * @property {(command: Command) => () => void} add  returns what removes it
 * @property {(id: string) => boolean} run  false: there is no such command, or it is not enabled
 * @property {(event: KeyboardEvent) => boolean} handle  true: a command ran
 * @property {() => Command[]} list
 */

/**
 * @typedef {object} Host
 * @property {"served" | "notebook" | "saved"} mode
 * @property {(request: Request, signal?: AbortSignal) => Promise<Reply>} ask  rejects with HostError or AbortError
 * @property {(request: Request) => boolean} has
 * @property {(name: string, blob: Blob) => void} download
 * @property {() => void} [dispose]
 */

/** @typedef {{signal?: AbortSignal, priority?: number}} AskOptions  higher priorities first; default 0 */

/**
 * @typedef {object} Client
 * @property {(request: Request, options?: AskOptions) => Promise<Reply>} ask
 * @property {(request: Request, onReply: (reply: Reply) => void, options?: AskOptions) => Promise<void>} follow
 *   calls onReply with each more complete reply; resolves when complete or aborted, rejects when the host refuses
 * @property {(request: Request) => Reply | undefined} peek
 * @property {(name: string) => Request[]} cachedRequests  requests with complete replies in the cache, least recently used first
 * @property {(listener: (event: ClientEvent) => void) => () => void} subscribe
 * @property {() => void} dispose  aborts everything in flight
 */

/**
 * @typedef {{type: "unreachable"} | {type: "slow"} | {type: "recovered"} | {type: "failed", message: string} | {type: "busy",
 *   inFlight: number}} ClientEvent
 */

/**
 * @typedef {object} Items  the items of one axis
 * @property {string[]} labels
 * @property {number[]} noSpaceBefore  1: no space before it
 * @property {Set<number>} specials
 * @property {Set<number>} [unknown]  items with a token for what the model's vocabulary lacks
 * @property {Map<number, number>} [breaks]  newlines before an item that no item stands for
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
 * @property {() => {name: string, blob: Blob}} [csv]  what is shown as a table, if that is not weights
 */

/**
 * @typedef {object} App
 * @property {Client} client
 * @property {Host} host
 * @property {About} about
 * @property {Store} store
 * @property {Commands} commands
 * @property {Session} session  runs texts
 * @property {{past: Edits[], future: Edits[], first: RunRequest | null}} history  of changes, to undo and redo, and what the page opened with
 * @property {{cross: "written" | "read"}} rows  how rows of cross-attention are named
 * @property {() => Promise<void>} reopen  shows the same again, after a change of `rows`
 * @property {{on: boolean}} quiet  while on, changes of the head add no step to the browser's history
 * @property {{on: boolean, end: () => void}} provisional  on: the head that the page opens with is not chosen yet, and not written to the address
 * @property {HTMLElement} root
 * @property {(side: SideId, stack: string, as?: {merge: string, specials: string}) => Promise<Items>} items
 *   with the store's merge and specials unless `as` is given
 * @property {() => {queries: number, keys: number}} sizes  items of the current map's axes
 * @property {(id: SideId, stack: string) => Items | undefined} peekItems  if they are loaded
 * @property {() => Where} where
 * @property {(id?: SideId) => Side} side  by default the store's
 * @property {(text: string) => void} announce  for screen readers
 * @property {(text: string) => void} status
 * @property {(message: string) => void} fail  shows an error message that can be dismissed
 * @property {(side: SideId, kind: Kind, layer: number, head: number) => void} openHead  opens a head in the first tab
 * @property {() => "light" | "dark"} theme  the resolved theme
 * @property {boolean} isFresh  the page was opened without naming a head
 */

/**
 * @typedef {(
 *   {kind: "rect", x: number, y: number, w: number, h: number, fill: string, stroke?: string} |
 *   {kind: "line", x1: number, y1: number, x2: number, y2: number, stroke: string, width: number, opacity: number} |
 *   {kind: "path", d: (string | number)[][], stroke: string, width: number, opacity: number, fill?: string} |
 *   {kind: "text", x: number, y: number, text: string, size: number, anchor: "start" | "middle" | "end", fill: string,
 *    rotate?: number, serif?: boolean} |
 *   {kind: "image", x: number, y: number, w: number, h: number, pixels: Uint8ClampedArray, columns: number, rows: number}
 * )} SceneItem
 */

/** @typedef {{width: number, height: number, background: string, items: SceneItem[]}} Scene  CSS pixels; y grows down */

export {};
