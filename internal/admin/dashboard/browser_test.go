package dashboard

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// patience bounds every wait: what is waited for happens within milliseconds on an idle machine.
const patience = 4 * time.Minute

// browser starts Debian's Chromium, without a window.
func browser(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a browser")
	}
	program, err := exec.LookPath("chromium")
	if err != nil {
		daemontest.NotTested(t, "chromium is not installed; scripts/need test does that: "+err.Error())
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()),
		chromedp.WSURLReadTimeout(patience), chromedp.Flag("disable-gpu", true), chromedp.Flag("lang", "en-US"))
	if os.Getuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	allocator, end := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(end)
	ctx, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// page is a tab with the dashboard.
type page struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	errors   []string // of the console
	requests []string // URLs
}

// newPage opens an empty tab with no storage.
func newPage(t *testing.T, browser context.Context, width, height int64) *page {
	t.Helper()
	p := &page{t: t}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(p.note))
	t.Cleanup(cancel)
	p.ctx = ctx
	p.do(chromedp.EmulateViewport(width, height))
	return p
}

func (p *page) note(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.errors = append(p.errors, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, a := range e.Args {
				p.errors = append(p.errors, fmt.Sprintf("console.%s %s %s", e.Type, a.Description, a.Value))
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			p.errors = append(p.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

func (p *page) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// value returns that of an expression in the page. A promise is waited for.
func value[T any](p *page, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v\nconsole: %q", expression, err, p.errors)
	}
	return v
}

// until waits until an expression is true in the page.
func (p *page) until(expression string) {
	p.t.Helper()
	ok := value[bool](p, fmt.Sprintf(`new Promise((done) => {
		const end = performance.now() + %d;
		const look = () => {
			let is = false;
			try { is = Boolean(%s); } catch { /* not there yet */ }
			if (is || performance.now() > end) done(is); else setTimeout(look, 20);
		};
		look();
	})`, (patience/2).Milliseconds(), expression))
	if !ok {
		p.t.Fatalf("never: %s\nconsole: %q\npage: %.3000s", expression, p.errors, value[string](p, "document.body.innerText"))
	}
}

// open shows the page of a fixture and waits until every panel is there.
func (p *page) open(url string) {
	p.t.Helper()
	p.do(chromedp.Navigate(url))
	p.until(loaded)
}

// loaded is when every part of every panel has been filled.
const loaded = `document.querySelectorAll("[data-part]:empty").length === 0 && document.getElementById("live").dataset.level === "good"`

// dark sets the system's theme, as the page sees it.
func (p *page) scheme(value string) {
	p.t.Helper()
	p.do(func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
		return chromedp.Void{}, err
	})
}

// quiet fails the test if the console has said something, or if the page has asked another origin.
func (p *page) quiet(origin string) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.errors {
		p.t.Errorf("console: %s", e)
	}
	for _, url := range p.requests {
		if !strings.HasPrefix(url, origin+"/") && url != "about:blank" && !strings.HasPrefix(url, "data:") && !strings.HasPrefix(url, "chrome") {
			p.t.Errorf("asked %s", url)
		}
	}
	if len(p.requests) == 0 {
		p.t.Error("no request was seen")
	}
}
