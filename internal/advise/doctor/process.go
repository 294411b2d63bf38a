package doctor

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
)

// processTimeout bounds the reading of /proc: the kernel locks a process to read its
// arguments.
const processTimeout = 3 * time.Second

// hashSeed is the environment variable that makes Python's hash() the same in all
// processes.
const hashSeed = "PYTHONHASHSEED"

// process is a running daemon or engine.
type process struct {
	PID      int
	State    string
	Args     []string
	HashSeed *string // nil if not set or not readable
	Readable bool    // whether its environment is readable
}

// probeProcesses lists the daemons and engines that run here.
func probeProcesses() []process {
	h := host.Local()
	running, _ := h.Processes()
	all := []process{}
	for _, p := range running {
		if !serves(p.Args) && engineOf(p.Args) == "" {
			continue
		}
		found := process{PID: p.PID, State: p.State, Args: p.Args}
		if value, set, err := h.Environ(p.PID, hashSeed); err == nil {
			found.Readable = true
			if set {
				found.HashSeed = &value
			}
		}
		all = append(all, found)
	}
	return all
}

// serves reports whether args start a kv3fs daemon with a mount.
func serves(args []string) bool {
	return len(args) > 1 && filepath.Base(args[0]) == "kv3fs" && servesMount(args)
}

// servesMount reports whether the arguments are those of "serve" rather than "pages
// serve", which has no mount.
func servesMount(args []string) bool {
	at := slices.Index(args, "serve")
	return at > 0 && args[at-1] != "pages"
}

// engineOf returns the engine that a command line starts, or "". It does not mistake the
// doctor, or an editor of a file with an engine's name, for an engine.
func engineOf(args []string) string {
	program := filepath.Base(args[0])
	python := strings.HasPrefix(program, "python")
	for i, arg := range args {
		if i > 3 || i > 0 && !python {
			break
		}
		for _, name := range []string{"vllm", "sglang", "lmcache"} {
			base := filepath.Base(arg)
			if base == name || strings.HasPrefix(base, name+".") || strings.HasPrefix(base, name+"_") {
				return name
			}
		}
	}
	return ""
}

// daemonOf finds the kv3fs daemon of a mount that does not answer, by its command
// line.
func daemonOf(ctx context.Context, o *Options, point string) (process, bool) {
	all, err := runProbe[[]process](ctx, o, processTimeout, "processes")
	if err != nil {
		return process{}, false
	}
	for _, p := range all {
		if serves(p.Args) && slices.ContainsFunc(p.Args, func(arg string) bool { return arg == point || arg == "--mount="+point }) {
			return p, true
		}
	}
	return process{}, false
}
