package top

import (
	"context"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
)

// Options are the options of Run.
type Options struct {
	Ask   Ask
	Every time.Duration // how often the daemon is asked
}

// Run shows a daemon on a screen until somebody quits or ctx ends, whose error it does not return. The screen is initialised, and remains
// the caller's.
func Run(ctx context.Context, screen tcell.Screen, o Options) {
	ctx, cancel := context.WithCancel(ctx)
	v := &shown{screen: screen, parts: Parts(), asks: make(chan []string, 1), told: make(chan told)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		v.ask(ctx, o)
	}()
	defer func() {
		cancel()
		<-done
	}()
	v.wants()
	for {
		v.draw()
		select {
		case <-ctx.Done():
			return
		case is := <-v.told:
			v.answers, v.err, v.answered = is.answers, is.err, true
		case e, ok := <-screen.EventQ():
			if !ok || v.take(e) {
				return
			}
		}
	}
}

// told is what came of asking.
type told struct {
	answers Answers
	err     error
}

// shown is what the screen shows.
type shown struct {
	screen tcell.Screen
	parts  []Part
	part   int // that is looked at
	from   int // its first line that is shown
	lines  int // it has
	rows   int // for it

	answers  Answers
	err      error // why the newest ones are missing
	answered bool

	asks chan []string // what is looked at
	told chan told
}

// ask asks for what is looked at, again and again, and at once when that is something else.
func (v *shown) ask(ctx context.Context, o Options) {
	var all Answers
	paths := []string{"status"}
	for {
		err := all.Fetch(ctx, o.Ask, paths...)
		select {
		case <-ctx.Done():
			return
		case v.told <- told{all, err}:
		}
		timer := time.NewTimer(o.Every)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case paths = <-v.asks:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// wants says what is looked at now.
func (v *shown) wants() {
	select {
	case <-v.asks: // nobody has heard of it
	default:
	}
	v.asks <- v.parts[v.part].Asks()
}

// take obeys a key, and reports whether it ends all.
func (v *shown) take(e tcell.Event) (quit bool) {
	switch e := e.(type) {
	case *tcell.EventResize:
		v.screen.Sync()
	case *tcell.EventKey:
		if !e.Pressed() {
			return false
		}
		return v.key(e)
	}
	return false
}

func (v *shown) key(e *tcell.EventKey) (quit bool) {
	page := max(v.rows-1, 1)
	switch e.Key() {
	case tcell.KeyEsc, tcell.KeyCtrlC:
		return true
	case tcell.KeyTab:
		if e.Modifiers()&tcell.ModShift != 0 {
			v.look(v.part - 1)
		} else {
			v.look(v.part + 1)
		}
	case tcell.KeyBacktab, tcell.KeyLeft:
		v.look(v.part - 1)
	case tcell.KeyRight:
		v.look(v.part + 1)
	case tcell.KeyUp:
		v.from--
	case tcell.KeyDown:
		v.from++
	case tcell.KeyPgUp:
		v.from -= page
	case tcell.KeyPgDn:
		v.from += page
	case tcell.KeyHome:
		v.from = 0
	case tcell.KeyEnd:
		v.from = v.lines
	case tcell.KeyRune:
		switch text := e.Str(); {
		case text == "q" || text == "Q" || text == "c" && e.Modifiers()&tcell.ModCtrl != 0:
			return true
		case len(text) == 1 && text[0] >= '1' && int(text[0]-'1') < len(v.parts):
			v.look(int(text[0] - '1'))
		}
	}
	return false
}

// look looks at another part; after the last comes the first.
func (v *shown) look(part int) {
	v.part, v.from = (part+len(v.parts))%len(v.parts), 0
	v.wants()
}

func (v *shown) draw() {
	width, height := v.screen.Size()
	v.screen.Clear()
	if !v.answered {
		v.put(0, width, line(Faint, "asking the daemon"))
		v.screen.Show()
		return
	}
	v.put(0, width, Head(&v.answers.Status))
	tabs := Line{}
	for i, p := range v.parts {
		style := Faint
		if i == v.part {
			style = Strong
		}
		tabs = append(tabs, span(style, "%d", i+1), span(style, "%s", p.Title), span(Plain, " "))
	}
	v.put(1, width, tabs)
	lines := v.parts[v.part].Lines(&v.answers, width)
	v.rows, v.lines = max(height-3, 0), len(lines)
	v.from = max(min(v.from, len(lines)-v.rows), 0)
	for i := 0; i < v.rows && v.from+i < len(lines); i++ {
		v.put(2+i, width, lines[v.from+i])
	}
	foot := line(Faint, "q quit  tab, arrows: parts  up, down: scroll  %d-%d of %d", min(v.from+1, len(lines)), min(v.from+v.rows, len(lines)), len(lines))
	if v.err != nil {
		foot = line(Bad, "no answer: %s", v.err.Error())
	}
	if height > 2 {
		v.put(height-1, width, foot)
	}
	v.screen.Show()
}

// put draws a line, as far as the width goes.
func (v *shown) put(y, width int, l Line) {
	x := 0
	for _, s := range l {
		for rest := s.Text; rest != "" && x < width; {
			var took int
			if rest, took = v.screen.Put(x, y, rest, styleOf(s.Style)); took == 0 {
				break
			}
			x += took
		}
	}
}

// styleOf returns the style of a terminal. Without colours, which are off where NO_COLOR is set, strong and bad ones are bold.
func styleOf(s Style) tcell.Style {
	switch s {
	case Strong:
		return tcell.StyleDefault.Bold(true)
	case Faint:
		return tcell.StyleDefault.Dim(true)
	case Good:
		return tcell.StyleDefault.Foreground(color.Green)
	case Bad:
		return tcell.StyleDefault.Bold(true).Foreground(color.Red)
	}
	return tcell.StyleDefault
}
