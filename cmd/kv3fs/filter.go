package main

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// originFlags choose files by whose they are.
type originFlags struct {
	Owner string `env:"-" placeholder:"NAME" help:"Only files of this program, by the name that ls shows in the column owner, such as lmcache; unknown: those of no known layout."`
	Model string `env:"-" placeholder:"NAME" help:"Only files of this model, where the names tell."`
}

func (f *originFlags) origin() keeper.Origin { return keeper.Origin{Owner: f.Owner, Model: f.Model} }

func (f *originFlags) given() bool { return f.origin() != keeper.Origin{} }

// filterFlags choose files by what the daemon knows of them.
type filterFlags struct {
	originFlags
	OlderThan givenDuration `env:"-" placeholder:"DURATION" range:"1s..36500d" help:"Only files that were not used for as long, such as 12h or 7d."`
	NewerThan givenDuration `env:"-" placeholder:"DURATION" range:"1s..36500d" help:"Only files that were used within it."`
	MinUses   int           `env:"-" placeholder:"N" range:"0..255" help:"Only files that were used so often, besides that they were written."`
	MaxUses   int           `env:"-" default:"255" placeholder:"N" range:"0..255" help:"Only files that were used no more often; 0: never."`
}

// mostUses is the number of uses beyond which none is counted.
const mostUses = 255

func (f *filterFlags) given() bool {
	return f.originFlags.given() || f.OlderThan != 0 || f.NewerThan != 0 || f.MinUses != 0 || f.MaxUses != mostUses
}

// check rejects flags that no file can satisfy together.
func (f *filterFlags) check() error {
	switch {
	case f.NewerThan > 0 && f.OlderThan > f.NewerThan:
		return bad("newer-than", "no file was used within %v and not for %v: give --older-than a shorter time", time.Duration(f.NewerThan), time.Duration(f.OlderThan))
	case f.MinUses > f.MaxUses:
		return bad("max-uses", "no file was used at most %d and at least %d times: give --min-uses fewer", f.MaxUses, f.MinUses)
	}
	return nil
}

// selection returns the files below paths that the flags choose.
func (f *filterFlags) selection(paths []string) keeper.Selection {
	return keeper.Selection{Patterns: paths, Filter: keeper.Filter{
		Origin: f.origin(), UnusedAtLeast: time.Duration(f.OlderThan), UnusedAtMost: time.Duration(f.NewerThan), UsesAtLeast: f.MinUses, UsesAtMost: &f.MaxUses,
	}}
}
