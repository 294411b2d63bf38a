package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// Origin is whose files are wanted. A file's name tells it, so it stays the same for as long as
// the file has that name.
type Origin struct {
	Owner string `json:"owner,omitempty"` // "": any
	Model string `json:"model,omitempty"` // where the names tell; "": any
}

func (o Origin) check() error {
	if _, ok := classify.ParseOwner(o.Owner); o.Owner != "" && !ok {
		return fmt.Errorf("there is no owner %q: give one of %v", o.Owner, classify.Owners())
	}
	if strings.Contains(o.Model, "\x00") {
		return errors.New("no model has a NUL in its name")
	}
	return nil
}

func (o Origin) asksFor(layout *classify.File) bool {
	return (o.Owner == "" || o.Owner == layout.Owner.String()) && (o.Model == "" || o.Model == layout.Model)
}

// Filter says which files are wanted, by what is known of them. What is zero asks for nothing.
type Filter struct {
	Origin
	// Unused is for how long they were not used, at least and at most.
	UnusedAtLeast time.Duration `json:"unused_at_least_ns,omitempty"`
	UnusedAtMost  time.Duration `json:"unused_at_most_ns,omitempty"`
	UsesAtLeast   int           `json:"uses_at_least,omitempty"`
	UsesAtMost    *int          `json:"uses_at_most,omitempty"`
}

// Narrows reports whether there may be files that the filter does not ask for.
func (f *Filter) Narrows() bool {
	return f.Origin != Origin{} || f.UnusedAtLeast != 0 || f.UnusedAtMost != 0 || f.UsesAtLeast != 0 || f.UsesAtMost != nil && *f.UsesAtMost < mostUses
}

// mostUses is the number of uses beyond which none is counted.
const mostUses = math.MaxUint8

// check returns an error for what no file can be.
func (f *Filter) check() error {
	switch {
	case f.UnusedAtLeast < 0 || f.UnusedAtMost < 0 || f.UsesAtLeast < 0 || f.UsesAtMost != nil && *f.UsesAtMost < 0:
		return errors.New("a time or a number of uses below 0 is wanted, which no file has")
	case f.UnusedAtMost > 0 && f.UnusedAtLeast > f.UnusedAtMost:
		return fmt.Errorf("files that were not used for %v but within %v are wanted, which none can be", f.UnusedAtLeast, f.UnusedAtMost)
	case f.UsesAtMost != nil && f.UsesAtLeast > *f.UsesAtMost:
		return fmt.Errorf("files that were used at least %d and at most %d times are wanted, which none can be", f.UsesAtLeast, *f.UsesAtMost)
	}
	return f.Origin.check()
}

func (k *Keeper) asksFor(f *Filter, file *found, layout *classify.File) bool {
	unused := k.unused(file)
	return f.Origin.asksFor(layout) && (f.UnusedAtLeast == 0 || unused >= f.UnusedAtLeast) && (f.UnusedAtMost == 0 || unused <= f.UnusedAtMost) &&
		int(file.uses) >= f.UsesAtLeast && (f.UsesAtMost == nil || int(file.uses) <= *f.UsesAtMost)
}

func (k *Keeper) unused(f *found) time.Duration {
	return time.Duration(k.inv.Now()-f.lastUse) * time.Second
}

// Selection is which files are wanted, by where they are and by what is known of them.
type Selection struct {
	Patterns []string `json:"patterns,omitempty"` // what operators mean; none: everything
	Filter
}

// meanings returns the patterns of a selection.
func (k *Keeper) meanings(s *Selection) []string {
	all := []string{}
	for _, text := range s.Patterns {
		all = append(all, k.Pattern(text))
	}
	return all
}

// anyCovers reports whether one of the patterns means a path.
func anyCovers(patterns []string, file string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return covers(p, file) })
}

// selected calls fn with the files of a selection, each once, until it returns an error, which it returns. They
// come pattern by pattern, as matching has them.
func (k *Keeper) selected(ctx context.Context, s *Selection, fn func(place, found, *classify.File) error) error {
	if err := s.check(); err != nil {
		return err
	}
	patterns, means := s.Patterns, k.meanings(s)
	if len(patterns) == 0 {
		patterns = []string{"."}
	}
	for i, pattern := range patterns {
		err := k.matching(ctx, pattern, func(p place, f found) error {
			if i > 0 && anyCovers(means[:i], f.path) {
				return nil // it was given already
			}
			layout := classify.Classify(f.path, classify.Context{})
			if !k.asksFor(&s.Filter, &f, &layout) {
				return nil
			}
			return fn(p, f, &layout)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Total is what the files of a selection come to.
type Total struct {
	Files           int64 `json:"files"` // names: one of several names counts once for each
	Bytes           int64 `json:"bytes"` // on the disk, each file once
	PinnedFiles     int64 `json:"pinned_files"`
	PinnedBytes     int64 `json:"pinned_bytes"`
	InUseFiles      int64 `json:"in_use_files"`
	TemporaryFiles  int64 `json:"temporary_files"`
	NeverUsedFiles  int64 `json:"never_used_files"` // besides that they were written
	Uses            int64 `json:"uses"`
	LeastUnusedSecs int64 `json:"least_unused_seconds"`
	MostUnusedSecs  int64 `json:"most_unused_seconds"`
}

// Total adds up the files of a selection.
func (k *Keeper) Total(ctx context.Context, s Selection) (Total, error) {
	var t Total
	linked := map[FileKey]bool{}
	err := k.selected(ctx, &s, func(_ place, f found, layout *classify.File) error {
		e := k.listed(f, layout)
		if f.several {
			if linked[f.key] {
				e.Bytes = 0
			}
			linked[f.key] = true
		}
		if t.Files++; t.Files == 1 {
			t.LeastUnusedSecs = e.UnusedSeconds
		}
		t.LeastUnusedSecs, t.MostUnusedSecs = min(t.LeastUnusedSecs, e.UnusedSeconds), max(t.MostUnusedSecs, e.UnusedSeconds)
		t.Bytes, t.Uses = t.Bytes+e.Bytes, t.Uses+int64(e.Uses)
		for _, count := range []struct {
			n  *int64
			is bool
		}{{&t.PinnedFiles, e.Pinned}, {&t.InUseFiles, e.InUse}, {&t.TemporaryFiles, e.Temporary}, {&t.NeverUsedFiles, e.Uses == 0}} {
			if count.is {
				*count.n++
			}
		}
		if e.Pinned {
			t.PinnedBytes += e.Bytes
		}
		return nil
	})
	return t, err
}

// Pin keeps files, also those that are not there yet, whatever room there is.
type Pin struct {
	Pattern string `json:"pattern"`
	Origin
}

// String returns a pin as a command line has it.
func (p Pin) String() string {
	text := fmt.Sprintf("%q", p.Pattern)
	for _, flag := range []struct{ name, value string }{{"owner", p.Owner}, {"model", p.Model}} {
		if flag.value != "" {
			text += fmt.Sprintf(" --%s %q", flag.name, flag.value)
		}
	}
	return text
}

func (p *Pin) check() error { return cmp.Or(checkPattern(p.Pattern), p.Origin.check()) }

func (p *Pin) holds(file string) bool {
	if !covers(p.Pattern, file) {
		return false
	}
	if p.Origin == (Origin{}) {
		return true
	}
	layout := classify.Classify(file, classify.Context{})
	return p.asksFor(&layout)
}
