package main

import (
	"errors"

	"github.com/kv3fs/kv3fs/internal/daemon"
)

// awaitTakeoverCmd is what a daemon executes while another process takes over from it.
type awaitTakeoverCmd struct {
	Command []string `arg:"" passthrough:"" name:"command" help:"The command line of the daemon."`
}

// Run waits for the other process, or goes on as the daemon.
func (c *awaitTakeoverCmd) Run(tell *teller) error {
	if len(c.Command) == 0 || c.Command[0] != "--" {
		return errors.New("this is for a daemon that another process takes over from")
	}
	return daemon.AwaitTakeover(tell.inherited, c.Command[1:])
}
