package top

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/vt"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

const patience = time.Minute

// hostile would change a terminal's title and colours, move its cursor, and is not UTF-8.
const hostile = "\x1b]0;title\a\x1b[2J\x1b[31mred\r\n\x9b2J\u202e\xff<b>\"'"

// hostileAnswers has that everywhere.
func hostileAnswers() Answers {
	ratio, one := 0.5, 1.5
	finding := api.Finding{ID: hostile, Status: api.FindingWarning, Found: hostile, Needed: hostile, Fix: hostile}
	s := api.Status{
		Version: hostile, Mount: hostile, Data: hostile, Health: api.Unhealthy, Checks: []api.Check{{Name: hostile, Error: hostile}}, Keeper: &api.Kept{Capacity: hostile, LimitBytes: 5, UsedBytes: 2},
		Space: &api.Space{}, Findings: &api.Summary{Top: []api.Finding{finding}},
	}
	state := &keeper.State{Dir: hostile}
	return Answers{
		Status:   s,
		History:  api.History{Series: []api.Series{{Name: "ring_read_bytes", Unit: "bytes/s", Values: []*float64{nil, &ratio, &one}}, {Name: "hit_ratio", Unit: "ratio", Values: []*float64{nil}}}},
		Hits:     api.Hits{Engines: []api.HitRate{{Engine: hostile, Model: hostile, HitRatio: &ratio}}},
		Usage:    api.Usage{Keeps: true, Bytes: 9, Directories: []api.Directory{{Path: "a/" + hostile, Directories: []api.Directory{{Path: hostile}}, More: 2}}, Engines: []api.Engine{{Engine: hostile, Models: []api.Model{{Model: hostile}}}}},
		Keeper:   api.Keeping{State: state, Why: hostile, Evictions: []api.Eviction{{Reason: hostile}}, Quotas: []api.Quota{{Path: hostile}}, Pins: []api.Pin{{Pattern: hostile, Owner: hostile, Model: hostile}}, TTLs: []api.TTL{{Pattern: hostile}}},
		Curve:    api.Curve{Points: []api.CurvePoint{{Factor: 1, HitRatio: 1}}},
		Clients:  api.Clients{Clients: []api.Client{{User: hostile, Name: hostile}}},
		Pages:    api.Pages{Serves: true, Spaces: []api.PageSpace{{Namespace: hostile, Set: hostile}}},
		Hosts:    api.Hosts{Cluster: true, Why: hostile, Hosts: []api.Host{{ID: hostile, Address: hostile, Role: hostile}}},
		Findings: api.Findings{Checked: &time.Time{}, Findings: []api.Finding{finding}},
		Log:      api.Log{Lines: []api.LogLine{{Message: hostile, Level: "error", Attributes: []api.Attribute{{Key: hostile, Value: hostile}}}}},
	}
}

// No text of a part, however hostile what it is made of, has anything that a terminal obeys.
func TestTextsAreText(t *testing.T) {
	a := hostileAnswers()
	lines := []Line{Head(&a.Status)}
	for _, p := range Parts() {
		for _, width := range []int{0, 1, 30, 80, 300} {
			more := p.Lines(&a, width)
			if len(more) == 0 {
				t.Errorf("%s shows nothing", p.Title)
			}
			lines = append(lines, more...)
		}
	}
	shown := false
	for _, l := range lines {
		for _, s := range l {
			if strings.ContainsFunc(s.Text, func(r rune) bool {
				return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0xfffd
			}) {
				t.Errorf("%q", s.Text)
			}
			shown = shown || strings.Contains(s.Text, `\x1b[31mred`)
		}
	}
	if !shown {
		t.Error("the names are not shown")
	}
	for _, p := range Parts() { // of a daemon that has nothing
		p.Lines(&Answers{}, 80)
	}
}

// terminal is an emulated one with a daemon on it.
type terminal struct {
	t    *testing.T
	mock vt.MockTerm
	size vt.Coord
	done chan struct{}
}

func show(t *testing.T, size vt.Coord, ask Ask) *terminal {
	t.Helper()
	m := &terminal{t: t, mock: vt.NewMockTerm(vt.MockOptSize(size)), size: size, done: make(chan struct{})}
	screen, err := tcell.NewTerminfoScreenFromTty(m.mock)
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(m.done)
		Run(ctx, screen, Options{Ask: ask, Every: time.Millisecond})
		screen.Fini()
	}()
	t.Cleanup(func() {
		cancel()
		<-m.done
	})
	return m
}

func (m *terminal) text() string {
	var b strings.Builder
	for y := range m.size.Y {
		for x := range m.size.X {
			b.WriteString(m.mock.GetCell(vt.Coord{X: x, Y: y}).C)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// await waits until a text is shown.
func (m *terminal) await(want string) {
	m.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(m.text(), want); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("no %q:\n%s", want, m.text())
		}
	}
}

// told answers from answers.
func answering(a Answers, fails *atomic.Bool) Ask {
	return func(_ context.Context, path string, into any) error {
		if fails.Load() {
			return errors.New("it has stopped: " + hostile)
		}
		path, _, _ = strings.Cut(path, "?")
		text, err := api.Encode(a.of(path).into)
		if err != nil {
			return err
		}
		return api.Decode(text, into)
	}
}

// Keys lead through the parts, a daemon that stops is said to, and one that is back is shown again.
func TestKeys(t *testing.T) {
	var fails atomic.Bool
	m := show(t, vt.Coord{X: 80, Y: 24}, answering(hostileAnswers(), &fails))
	m.await("q quit")
	m.await("NOT READY")
	m.mock.KeyTap(vt.KeyTab)
	m.await("holds")
	m.mock.KeyTap(vt.KeyRight)
	m.await("directory")
	m.mock.KeyTap(vt.KeyLShift, vt.KeyTab)
	m.await("holds")
	m.mock.KeyTap(vt.KeyLeft)
	m.await("NOT READY")
	m.mock.KeyTap(vt.KeyLeft) // the last one
	m.await(`title\a`)
	fails.Store(true)
	m.await("no answer: it has stopped")
	fails.Store(false)
	m.await("q quit")
	if text := m.text(); strings.Contains(text, "\x1b") {
		t.Errorf("%q", text)
	}
	m.mock.KeyTap(vt.KeyQ)
	select {
	case <-m.done:
	case <-time.After(patience):
		t.Fatal("q does not quit")
	}
}

// A terminal of any size shows what there is room for.
func TestSizes(t *testing.T) {
	var fails atomic.Bool
	for _, size := range []vt.Coord{{X: 1, Y: 1}, {X: 7, Y: 2}, {X: 20, Y: 3}, {X: 40, Y: 10}, {X: 200, Y: 60}} {
		m := show(t, size, answering(hostileAnswers(), &fails))
		m.await("k")
		for range len(Parts()) {
			m.mock.KeyTap(vt.KeyTab)
			m.mock.KeyTap(vt.KeyPgDn)
		}
		m.await("k")
		m.mock.KeyTap(vt.KeyQ)
		<-m.done
	}
}

// A daemon of a version without the parameter after is asked without it, and one that numbers its steps only for what is new.
func TestHistoryOfOlderDaemons(t *testing.T) {
	for _, older := range []bool{true, false} {
		var a Answers
		for measured := int64(7); measured < 9; measured++ {
			ask := func(_ context.Context, path string, into any) error {
				want := "history"
				if !older && measured == 8 {
					want = "history?after=7"
				}
				if path != want {
					t.Errorf("older: %v, asked for %s, want %s", older, path, want)
				}
				h := into.(*api.History)
				*h = api.History{Window: api.Window10m, StepSeconds: 1, Times: []int64{1e9 + measured}, Series: []api.Series{}}
				if !older {
					h.First, h.Measured = measured, measured
				}
				return nil
			}
			if err := a.Fetch(t.Context(), ask, "history"); err != nil {
				t.Fatal(err)
			}
			if n := len(a.History.Times); n != 1 || a.History.Times[0] != 1e9+measured {
				t.Errorf("older: %v, %v", older, a.History.Times)
			}
		}
	}
}
