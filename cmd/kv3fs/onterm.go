package main

import (
	"context"
	"log/slog"

	"github.com/kv3fs/kv3fs/internal/fdstore"
)

// onTerm is the value of --on-term.
type onTerm string

// handsOver decides what a signal to stop asks for.
func (o onTerm) handsOver(log *slog.Logger) bool {
	switch o {
	case "handover":
		return true
	case "stop":
		return false
	}
	job, err := fdstore.JobOf(context.Background())
	if err != nil {
		log.Warn("whether this is a stop or a restart is not known; it is taken for a stop", "err", err, "cure", "--on-term stop or handover")
	}
	return job == fdstore.RestartJob
}
