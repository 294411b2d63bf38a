package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/host"
)

// checkHashSeed checks that all processes compute the same keys with Python's hash().
// Without the variable, hash() differs from process to process.
func checkHashSeed(ctx context.Context, o *Options) Finding {
	running, err := runProbe[[]process](ctx, o, processTimeout, "processes")
	if err != nil {
		running = nil // judge only this process's environment
	}
	return judgeHashSeed(o.Host, running)
}

func judgeHashSeed(h host.Host, running []process) Finding {
	const id = "env." + hashSeed
	f := Finding{ID: id, Status: Warning, Needed: "the same number in every process that shares files: otherwise each computes different keys and finds nothing",
		Fix: "export " + hashSeed + "=0   # on every host, before the engine starts"}
	var without, seeds []string
	unreadable := 0
	for _, p := range running {
		switch {
		case engineOf(p.Args) == "":
		case !p.Readable:
			unreadable++
		case !fixedSeed(p.HashSeed):
			without = append(without, fmt.Sprintf("%s (pid %d)", engineOf(p.Args), p.PID))
		case !slices.Contains(seeds, *p.HashSeed):
			seeds = append(seeds, *p.HashSeed)
		}
	}
	value, set := h.LookupEnv(hashSeed)
	switch {
	case len(without) > 0:
		f.Found = "not set in the running " + strings.Join(without, ", ")
	case len(seeds) > 1:
		f.Found = "running engines have different values: " + strings.Join(seeds, ", ")
	case len(seeds) == 1:
		return ok(id, "%s in all running engines whose environment is readable", seeds[0])
	case set && fixedSeed(&value):
		return ok(id, "%s here; an engine started from here inherits it", value)
	case unreadable > 0:
		f.Status, f.Found = Note, "this user may not read the environment of the running engines"
	default:
		f.Found = "not set here, and no engine runs"
	}
	return f
}

// fixedSeed reports whether a value of the variable makes hash() repeatable.
func fixedSeed(value *string) bool { return value != nil && *value != "" && *value != "random" }
