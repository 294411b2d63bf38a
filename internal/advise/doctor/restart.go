package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// restart returns a line that ends the daemon of a mount and starts it again with its own
// arguments, after a change of these. It returns "" if the daemon is not seen here.
func restart(ctx context.Context, o *Options, point string, change func(args []string) []string) string {
	p, found := daemonOf(ctx, o, point)
	if !found {
		return ""
	}
	pid := strconv.Itoa(p.PID)
	return "kill " + pid + "; tail --pid=" + pid + " -f /dev/null; " + commandLine(change(slices.Clone(p.Args)))
}

// writable returns a daemon's arguments without --readonly, which may also come from its
// configuration file.
func writable(args []string) []string {
	isReadonly := func(arg string) bool { return arg == "--readonly" || strings.HasPrefix(arg, "--readonly=") }
	if slices.ContainsFunc(args, isReadonly) {
		return slices.DeleteFunc(args, isReadonly)
	}
	return append(args, "--readonly=false")
}

// forOthers returns a daemon's arguments with --allow-other.
func forOthers(args []string) []string {
	return append(slices.DeleteFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--allow-other") }), "--allow-other")
}

// commandLine returns a command as a shell takes it.
func commandLine(args []string) string {
	var words []string
	for _, arg := range args {
		words = append(words, quote(arg))
	}
	return strings.Join(words, " ")
}

// allowOthers lets users other than root use --allow-other.
const allowOthers = "grep -qx user_allow_other /etc/fuse.conf || echo user_allow_other >> /etc/fuse.conf   # as root"

// withOption returns a command line with the value of an option replaced, or added.
func withOption(args []string, option, value string) []string {
	for i, arg := range args {
		if arg == option && i+1 < len(args) {
			args[i+1] = value
			return args
		}
		if strings.HasPrefix(arg, option+"=") {
			args[i] = option + "=" + value
			return args
		}
	}
	return append(args, option, value)
}

// engineLine returns the command line of a vLLM that runs here, with another share of the
// GPU's memory, or what to write in that of one that does not run.
func engineLine(ctx context.Context, o *Options, share float64) string {
	const option = "--gpu-memory-utilization"
	value := fmt.Sprintf("%.2f", share)
	all, _ := runProbe[[]process](ctx, o, processTimeout, "processes") // without the list, none is known
	for _, p := range all {
		if engineOf(p.Args) == "vllm" && slices.Contains(p.Args, "serve") {
			return commandLine(withOption(slices.Clone(p.Args), option, value)) + "   # or a smaller gds_buffer_size"
		}
	}
	return "write " + option + " " + value + " after vllm serve, or a smaller gds_buffer_size"
}
