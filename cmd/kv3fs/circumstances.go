package main

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/host"
)

// circumstances describes what a command measured with, on what, and when.
func (v *flagValues) circumstances() measure.Circumstances {
	return measure.Circumstances{Version: version(), Machine: machineText(host.Local()), Date: time.Now().UTC().Truncate(time.Second), Command: shellCommand(v.args)}
}

// machineText describes a machine, without its name.
func machineText(h host.Host) string {
	text := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if model := h.Processor(); model != "" {
		text += " (" + model + ")"
	}
	if bytes, err := h.MemoryBytes(); err == nil {
		text += ", " + measure.SizeText(bytes)
	}
	if kernel, err := h.Kernel(); err == nil {
		text += ", Linux " + kernel.Release
	}
	return text
}

// shellCommand writes a command line of kv3fs as a shell takes it.
func shellCommand(args []string) string {
	words := []string{"kv3fs"}
	for _, arg := range args {
		plain := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:=,@%+", r)
		}
		if arg == "" || strings.TrimFunc(arg, plain) != "" {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		words = append(words, arg)
	}
	return strings.Join(words, " ")
}
