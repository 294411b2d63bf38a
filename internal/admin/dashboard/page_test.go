package dashboard

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/kv3fs/kv3fs/internal/admin/api"
)

// TestPage drives the page in a real browser: one browser, and a tab with a storage of its own for each test.
func TestPage(t *testing.T) {
	b := browser(t)
	// Four at once, however many processors there are: much of the time, a page waits until its next question.
	var all sync.WaitGroup
	tabs := make(chan struct{}, 4)
	for name, test := range map[string]func(*testing.T, func(width, height int64) *page){
		"numbers": testNumbers, "live": testLive, "hostile names": testHostile, "absent parts": testAbsent, "lost daemon": testLost, "failing API": testFailing, "slow API": testSlow,
		"token": testToken, "phone": testPhone, "themes": testThemes, "keyboard": testKeyboard, "names and texts": testAccessible, "log": testLog, "unhealthy": testUnhealthy, "joined history": testJoined,
		"evictions of a daemon": testEvictions, "hosts of daemons": testHosts,
	} {
		all.Go(func() {
			tabs <- struct{}{}
			defer func() { <-tabs }()
			t.Run(name, func(t *testing.T) {
				test(t, func(width, height int64) *page { return newPage(t, b, width, height) })
			})
		})
	}
	all.Wait()
}

// shownNumber is a <data> element of the page.
type shownNumber struct{ From, Value, Text string }

// numbers returns all numbers of the page that say where they are from.
func (p *page) numbers() []shownNumber {
	p.t.Helper()
	return value[[]shownNumber](p, `Array.from(document.querySelectorAll("data[data-from]"), (d) => ({From: d.dataset.from, Value: d.value, Text: d.textContent}))`)
}

// documents are the answers of the API, decoded without types.
func (f *fixture) documents(t *testing.T) map[string]any {
	t.Helper()
	all := map[string]any{}
	for name, path := range map[string]string{
		"status": "status", "hits": "hits", "curve": "curve", "usage": "usage", "keeper": "keeper", "clients": "clients", "pages": "pages", "hosts": "hosts", "history": "history?window=10m",
	} {
		answer, err := http.Get(f.URL + api.Prefix + path)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %v %s", path, answer.StatusCode, err, text)
		}
		var document any
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		all[name] = document
	}
	return all
}

// at follows a JSON pointer.
func at(document any, pointer string) (any, error) {
	for _, step := range strings.Split(strings.TrimPrefix(pointer, "/"), "/") {
		switch d := document.(type) {
		case map[string]any:
			next, ok := d[step]
			if !ok {
				return nil, fmt.Errorf("no %q", step)
			}
			document = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(d) {
				return nil, fmt.Errorf("no element %q", step)
			}
			document = d[i]
		default:
			return nil, fmt.Errorf("nothing below %q", step)
		}
	}
	return document, nil
}

// steady is busy with series that do not change, so that a number is the same whenever it is asked for.
func steady() known {
	k := busy()
	for name, of := range k.series {
		v := of(0)
		k.series[name] = func(int) *float64 { return v }
	}
	return k
}

// roughly reports whether a text with a unit says a value: the number in it, times what its unit says, is the value but for rounding.
func roughly(text string, v float64) bool {
	units := map[string]float64{"": 1, "B": 1, "B/s": 1, "KiB": kib, "KiB/s": kib, "MiB": mib, "MiB/s": mib, "GiB": gib, "GiB/s": gib, "TiB": 1 << 40, "TiB/s": 1 << 40, "PiB": 1 << 50,
		"/s": 1, "requests/s": 1, "files/s": 1, "k": 1e3, "M": 1e6, "%": 0.01, "µs": 1e-6, "ms": 1e-3, "s": 1}
	number, unit, _ := strings.Cut(text, "\u00a0")
	if first, _, ok := strings.Cut(unit, "\u00a0"); ok { // "k requests/s"
		unit = first
	}
	if rest, ok := strings.CutSuffix(number, "/s"); ok {
		number = rest
	}
	if _, known := units[unit]; !known { // "20 rings"
		unit = ""
	}
	shown, err := strconv.ParseFloat(strings.ReplaceAll(number, ",", ""), 64)
	if err != nil {
		return false
	}
	shown *= units[unit]
	return shown == v || shown-v < 0.006*v && v-shown < 0.006*v || unit == "%" && shown-v < 0.0006 && v-shown < 0.0006
}

// Every number is that of the JSON, exactly as its value and rounded as its text, and every part shows some.
func testNumbers(t *testing.T, open func(int64, int64) *page) {
	f := start(t, steady(), "")
	p := open(1280, 900)
	p.open(f.URL)
	documents := f.documents(t)
	seen := map[string]int{}
	for _, n := range p.numbers() {
		document, pointer, _ := strings.Cut(n.From, ":")
		seen[document]++
		var want any
		var err error
		if document == "history" {
			want, err = *f.series[pointer](0), nil
		} else {
			want, err = at(documents[document], pointer)
		}
		number, isNumber := want.(float64)
		if err != nil || !isNumber {
			t.Errorf("%s: %v, %v", n.From, want, err)
			continue
		}
		if got, err := strconv.ParseFloat(n.Value, 64); err != nil || got != number {
			t.Errorf("%s: the page has %s, the API %v", n.From, n.Value, number)
		}
		if !roughly(n.Text, number) {
			t.Errorf("%s: the page shows %q for %v", n.From, n.Text, number)
		}
	}
	for document := range documents {
		if seen[document] == 0 {
			t.Errorf("the page shows no number of %s", document)
		}
	}
	// Charts: the table of the values is that of the series.
	value[bool](p, `document.querySelectorAll("details").forEach((d) => { d.open = true; }) || true`)
	p.until(`document.querySelectorAll('[data-chart="throughput"] tbody tr').length >= 10`)
	cell := value[string](p, `document.querySelector('[data-chart="throughput"] tbody tr:last-child td').textContent`)
	if !roughly(cell, *f.series["ring_read_bytes"](0)) {
		t.Errorf("the table of the chart shows %q", cell)
	}
	p.quiet(f.URL)
}

// choose changes what a field has, as a user does.
func (p *page) choose(id, choice string) {
	p.t.Helper()
	value[bool](p, fmt.Sprintf(`((e) => { e.value = %q; e.dispatchEvent(new Event("input")); return e.dispatchEvent(new Event("change")); })(document.getElementById(%q))`, choice, id))
}

// What changes is shown without a reload, and a pause holds it.
func testLive(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(1280, 900)
	p.open(f.URL)
	shown := func(n int) string {
		return fmt.Sprintf(`document.querySelector('data[data-from="status:/keeper/files"]').value === "%d"`, n)
	}
	f.change(func(k *known) {
		k.status.Keeper = &api.Kept{LimitBytes: gib, UsedBytes: gib / 2, Files: 77, Scanned: true}
	})
	p.until(shown(77))
	p.do(chromedp.Click(chromedp.ID("pause")))
	p.until(`document.getElementById("live").textContent.startsWith("paused")`)
	// What was asked before the pause may still come, and says 77, too.
	f.change(func(k *known) {
		k.status.Keeper = &api.Kept{LimitBytes: gib, UsedBytes: gib / 2, Files: 78, Scanned: true}
	})
	p.do(chromedp.Click(chromedp.ID("pause")))
	p.until(shown(78))
	p.choose("window", "24h")
	p.until(`document.querySelector('[data-chart="throughput"] .plot').getAttribute("aria-label").includes("the last 24 hours")`)
	p.quiet(f.URL)
}

// What is asked for in parts is as long as what is asked for at once, and its times ascend, though the clock is set back.
func testJoined(t *testing.T, open func(int64, int64) *page) {
	f := start(t, bare(), "")
	p := open(1280, 900)
	p.open(f.URL)
	got := value[struct{ Times, Values []int }](p, `import("/dashboard/history.js").then(({ History }) => {
		const answer = (first, times, values) => ({ window: "10m", step_seconds: 1, first, measured: 0, times, series: [{ name: "a", values }] });
		let h = new History(answer(-2, [1000, 1001, 1002, 1003], [0, 1, 2, 3]));
		h = new History(answer(2, [704, 705], [4, 5]), h);
		h = new History(answer(4, [], []), h);
		return { Times: h.times, Values: h.series.get("a") };
	})`)
	if want := []int{702, 703, 704, 705}; !slices.Equal(got.Times, want) || !slices.Equal(got.Values, []int{2, 3, 4, 5}) {
		t.Errorf("%+v, want the times %v", got, want)
	}
	p.quiet(f.URL)
}

// Names that others have chosen are text, whatever they contain.
func testHostile(t *testing.T, open func(int64, int64) *page) {
	f := start(t, hostile(), "")
	p := open(360, 800)
	p.open(f.URL)
	text := value[string](p, `document.body.textContent`)
	for _, want := range []string{`<img src=x onerror="window.hacked=1">`, `"><script>window.hacked=1</script>`, `line\nbreak\ttab\u{0}nul`, `\u{202e}gnp.exe`, `🦙 ラマ`} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not shown", want)
		}
	}
	if got := value[string](p, `String(window.hacked)`); got != "undefined" {
		t.Error("a name was run")
	}
	if n := value[int](p, `document.querySelectorAll("main img, main script, main [onmouseover]").length`); n != 0 {
		t.Errorf("%d elements are from names", n)
	}
	if strings.ContainsAny(text, "\u202e\u2066\u200b\x00") {
		t.Error("control characters are shown as they are")
	}
	p.noScroll()
	p.quiet(f.URL)
}

// noScroll fails the test if the page is wider than its window.
func (p *page) noScroll() {
	p.t.Helper()
	wide := value[string](p, `Array.from(document.querySelectorAll("body *")).filter((e) => !e.closest(".hidden, .skip, .log, .rows, .treemap, thead, caption, .u-wrap") && e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.tagName + "." + e.className).join(" ")`)
	if value[bool](p, `document.documentElement.scrollWidth > innerWidth`) || wide != "" {
		p.t.Errorf("wider than the window: %s", wide)
	}
}

// A part that is absent says so, and what turns it on.
func testAbsent(t *testing.T, open func(int64, int64) *page) {
	f := start(t, bare(), "")
	p := open(1280, 900)
	p.open(f.URL)
	for panel, want := range map[string]string{
		"disk": "--capacity", "evictions": "--capacity", "rules": "--capacity", "curve": "--capacity", "pages": "--pages-listen", "hosts": "--pages-store", "clients": "bench ring", "findings": "has not looked yet", "log": "No line yet",
	} {
		if text := value[string](p, fmt.Sprintf(`document.querySelector("#%s [data-part=body]").innerText`, panel)); !strings.Contains(text, want) {
			t.Errorf("%s: %q", panel, text)
		}
	}
	if text := value[string](p, `document.querySelector("#evictions [data-part=body]").innerText`); text != "Nothing is evicted: this daemon keeps no limit: start it with --capacity." {
		t.Errorf("%q", text)
	}
	// Lookups are counted without a capacity, too.
	p.until(`document.querySelector("[data-part=tiles]").innerText.includes("no lookup in the last seconds")`)
	if text := value[string](p, `document.getElementById("verdict").textContent`); !strings.HasPrefix(text, "Healthy") {
		t.Errorf("%q", text)
	}
	p.quiet(f.URL)
}

// A daemon that has gone is said to be gone, what it has said is marked as old, and it is found again.
func testLost(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(1280, 900)
	p.open(f.URL)
	f.mode.Store(gone)
	p.until(`document.getElementById("verdict").textContent.startsWith("Not reachable since ")`)
	p.until(`document.querySelector("#disk h2").innerText.includes("old, from ")`)
	if got := value[int](p, `document.querySelectorAll("#disk .engine").length`); got != 4 {
		t.Errorf("%d engines are left of the old treemap", got)
	}
	f.mode.Store(answering)
	p.until(`document.getElementById("live").textContent === "live" && document.querySelectorAll("[data-old], h2 .old").length === 0`)
}

// An answer that is an error is shown with its cure, as text.
func testFailing(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	f.mode.Store(failing)
	p := open(1280, 900)
	p.do(chromedp.Navigate(f.URL))
	p.until(`document.getElementById("reasons").textContent.includes("the <b>index</b> is damaged What to do: start the daemon again")`)
	f.mode.Store(answering)
	p.until(loaded)
	f.mode.Store(failing)
	p.until(`document.querySelector("#clients .failed").textContent.includes("the <b>index</b> is damaged")`)
	p.until(`document.getElementById("verdict").textContent.startsWith("No good answer since ")`)
}

// A daemon that hangs is not waited for: the page says so, and goes on when it answers.
func testSlow(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	freed := make(chan struct{})
	f.freed.Store(&freed)
	f.mode.Store(hanging)
	p := open(1280, 900)
	p.do(chromedp.Navigate(f.URL))
	p.until(`document.getElementById("verdict").textContent === "The daemon is not reachable" && document.getElementById("reasons").textContent.includes("No answer within")`)
	f.mode.Store(answering)
	close(freed)
	p.until(loaded)
}

// The page asks for the token, keeps it for the tab, sends it as a header and never in an address.
func testToken(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "s3cr3t&token")
	p := open(1280, 900)
	p.do(chromedp.Navigate(f.URL))
	p.until(`document.getElementById("login").open`)
	enter := func(token string) { p.do(chromedp.SendKeys(chromedp.ID("token"), token+kb.Enter)) }
	enter("wrong")
	p.until(`document.getElementById("login").open && document.getElementById("login-wrong").textContent === "The token is wrong."`)
	enter(f.token)
	p.until(loaded)
	p.do(chromedp.Reload())
	p.until(loaded)
	if value[bool](p, `document.getElementById("login").open || location.href.includes("s3cr3t")`) {
		t.Error("it is asked for again, or in the address")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(p.requests, func(url string) bool { return strings.Contains(url, "s3cr3t") }) {
		t.Error("the token is in the address of a request")
	}
}

func testPhone(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(360, 740)
	p.open(f.URL)
	p.noScroll()
	value[bool](p, `document.querySelectorAll("details").forEach((d) => { d.open = true; }) || true`)
	p.noScroll()
	p.quiet(f.URL)
}

// luminance is that of a CSS colour rgb(r, g, b), for contrasts as WCAG defines them.
const luminance = `(color) => {
	const [r, g, b] = color.match(/[\d.]+/g).slice(0, 3).map((c) => (color.startsWith("color(srgb") ? +c : c / 255)).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
	return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}`

// The system's theme holds until another is chosen, which is kept; texts are legible in both.
func testThemes(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(1280, 900)
	dark := `(` + luminance + `)(getComputedStyle(document.body).backgroundColor) < 0.2`
	legible := `(() => {
		const l = ` + luminance + `;
		const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/rgba\(.*, 0\)|transparent/.test(c)) return c; } return "rgb(255, 255, 255)"; };
		return Array.from(document.querySelectorAll("h1, h2, h3, p, th, td, dt, dd, a, label, li, small, code, .badge, .label, button")).filter((e) => e.textContent.trim() && e.checkVisibility()).map((e) => {
			const [a, b] = [l(getComputedStyle(e).color), l(ground(e))];
			return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName + "." + e.className + " " + e.textContent.slice(0, 30)];
		}).filter(([contrast]) => contrast < 4.5).map(([contrast, what]) => contrast.toFixed(2) + " " + what).join("; ");
	})()`
	for _, scheme := range []string{"light", "dark"} {
		p.scheme(scheme)
		p.open(f.URL)
		if got := value[bool](p, dark); got != (scheme == "dark") {
			t.Errorf("%s: dark is %v", scheme, got)
		}
		if faint := value[string](p, legible); faint != "" {
			t.Errorf("%s: contrast below 4.5: %s", scheme, faint)
		}
	}
	p.choose("theme", "light")
	p.until(`!(` + dark + `)`)
	p.do(chromedp.Reload())
	p.until(loaded)
	if value[bool](p, dark) {
		t.Error("the choice is forgotten")
	}
	p.choose("theme", "")
	p.until(dark)
	p.quiet(f.URL)
}

// Tab reaches everything that can be used, in the order of the page, and what has the focus shows it.
func testKeyboard(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(1280, 900)
	p.open(f.URL)
	p.do(chromedp.Click(chromedp.ID("pause"))) // so that the page stays as it is
	p.until(`document.getElementById("live").textContent.startsWith("paused")`)
	value[bool](p, `document.activeElement.blur() || getSelection().removeAllRanges() || document.body.focus() || true`)
	want := value[int](p, `(window.wanted = Array.from(document.querySelectorAll("a[href], button, select, input, summary, [tabindex='0']")).filter((e) => e.checkVisibility() && !e.closest("dialog"))).length`)
	value[bool](p, `(window.reached = [], window.plain = [], document.addEventListener("focusin", (e) => {
		reached.push(e.target);
		const s = getComputedStyle(e.target);
		if (e.target.matches(":focus-visible") && !(s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2)) plain.push(e.target.outerHTML.slice(0, 80));
	}), true)`)
	for range want + 2 {
		p.do(chromedp.KeyEvent(kb.Tab))
	}
	if missed := value[string](p, `wanted.filter((e) => !reached.includes(e)).map((e) => e.outerHTML.slice(0, 100)).join("; ")`); missed != "" || want < 25 {
		t.Errorf("of %d elements, the keyboard does not reach %s", want, missed)
	}
	if plain := value[string](p, `plain.join("; ")`); plain != "" {
		t.Errorf("the focus is not seen on %s", plain)
	}
	if first := value[string](p, `wanted[0].textContent`); first != "Skip to the panels" {
		t.Errorf("the first is %q", first)
	}
	// Arrow keys move along a chart, whose legend says the values there.
	value[bool](p, `document.querySelector('[data-chart="throughput"] .plot').focus() || true`)
	p.do(chromedp.KeyEvent(kb.Home))
	p.until(`/^\d\d:\d\d:\d\d$|^\d{4}-/.test(document.querySelector('[data-chart="throughput"] .when dd').textContent)`)
	early := value[string](p, `document.querySelector('[data-chart="throughput"] .when dd').textContent`)
	p.do(chromedp.KeyEvent(kb.ArrowRight))
	p.until(fmt.Sprintf(`document.querySelector('[data-chart="throughput"] .when dd').textContent !== %q`, early))
	p.quiet(f.URL)
}

// Everything has a name; charts and areas have texts that say what they show.
func testAccessible(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(1280, 900)
	p.open(f.URL)
	if nameless := value[string](p, `Array.from(document.querySelectorAll("a, button, select, input, section, nav, table, [role=img], dialog, ol[tabindex]")).filter((e) =>
		!(e.getAttribute("aria-label") || document.getElementById(e.getAttribute("aria-labelledby"))?.textContent || e.labels?.length || (e.tagName === "TABLE" ? e.caption?.textContent : /^(A|BUTTON)$/.test(e.tagName) && e.textContent.trim()))).map((e) => e.outerHTML.slice(0, 80)).join("; ")`); nameless != "" {
		t.Errorf("without a name: %s", nameless)
	}
	if label := value[string](p, `document.querySelector('[data-chart="latency"] .plot').getAttribute("aria-label")`); !strings.Contains(label, "read p99: latest ") || !strings.Contains(label, "the last 10 minutes") {
		t.Errorf("%q", label)
	}
	if label := value[string](p, `document.querySelector('#disk [role="img"]').getAttribute("aria-label")`); !strings.Contains(label, "sglang-hicache 2.42\u00a0TiB") {
		t.Errorf("%q", label)
	}
	if doubled := value[string](p, `Array.from(document.querySelectorAll("[id]"), (e) => e.id).filter((id, i, all) => all.indexOf(id) !== i).join(" ")`); doubled != "" {
		t.Errorf("ids twice: %s", doubled)
	}
	for _, text := range value[[]string](p, `Array.from(document.querySelectorAll(".panel .what"), (e) => e.textContent)`) {
		if len(text) < 60 {
			t.Errorf("too short to explain: %q", text)
		}
	}
}

// The log grows, is filtered, and begins anew with a daemon that was started again.
func testLog(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	p := open(1280, 900)
	p.open(f.URL)
	lines := func(n int) string { return fmt.Sprintf(`document.querySelectorAll("#log li").length === %d`, n) }
	p.until(lines(len(f.lines)))
	more := api.LogLine{Seq: 8, Time: time.Now(), Level: "warn", Message: "the eighth", Attributes: []api.Attribute{{Key: "path", Value: "a b"}}}
	f.change(func(k *known) { k.lines = append(slices.Clone(k.lines), more) })
	p.until(lines(8))
	p.do(chromedp.SendKeys(chromedp.ID("log-search"), "PATH=A"))
	p.until(lines(1))
	p.choose("log-search", "")
	p.choose("log-level", "error")
	p.until(lines(1))
	p.choose("log-level", "")
	f.change(func(k *known) {
		k.status.Started = time.Now()
		k.lines = []api.LogLine{{Seq: 1, Time: time.Now(), Level: "info", Message: "serving again", Attributes: []api.Attribute{}}}
	})
	p.until(lines(1) + ` && document.querySelector("#log li").textContent.includes("serving again")`)
	p.quiet(f.URL)
}

// What is wrong is at the top, in words.
func testUnhealthy(t *testing.T, open func(int64, int64) *page) {
	f := start(t, busy(), "")
	f.change(func(k *known) {
		k.status.Health = api.Unhealthy
		k.status.Checks = append(k.status.Checks, api.Check{Name: "disk", Error: "it hangs; see dmesg"})
	})
	p := open(1280, 900)
	p.open(f.URL)
	if got := value[string](p, `document.getElementById("health").innerText`); !strings.HasPrefix(got, "Not healthy: disk") || !strings.Contains(got, "it hangs; see dmesg") {
		t.Errorf("%q", got)
	}
}
