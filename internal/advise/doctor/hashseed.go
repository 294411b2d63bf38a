package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/host"
)

// checkHashSeed is about keys that are made with Python's hash(): it differs
// from process to process unless it is told not to.
func checkHashSeed(ctx context.Context, o *Options) Finding {
	running, err := ask[[]process](ctx, o, processPatience, "processes")
	if err != nil {
		running = nil // then it is about this shell alone
	}
	return judgeHashSeed(o.Host, running)
}

func judgeHashSeed(h host.Host, running []process) Finding {
	const id = "env." + hashSeed
	f := Finding{ID: id, Status: Warning, Needed: "one number in every process that shares files: else each computes keys of its own and finds nothing",
		Fix: "export " + hashSeed + "=0   # before the engine is started, on every host"}
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
		f.Found = "running engines have different ones: " + strings.Join(seeds, ", ")
	case len(seeds) == 1:
		return ok(id, "%s in all running engines that can be looked at", seeds[0])
	case set && fixedSeed(&value):
		return ok(id, "%s here; an engine started from here has it, too", value)
	case unreadable > 0:
		f.Status, f.Found = Note, "the environment of the running engines is not this user's to read"
	default:
		f.Found = "not set here, nor does an engine run"
	}
	return f
}

// fixedSeed says whether a value of the variable makes hash() repeatable.
func fixedSeed(value *string) bool { return value != nil && *value != "" && *value != "random" }
