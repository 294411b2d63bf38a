package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
	"github.com/kv3fs/kv3fs/internal/manual"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Help is what "kv3fs completion --help" adds.
func (*completionCmd) Help() string {
	return `For example:

  kv3fs completion bash >/etc/bash_completion.d/kv3fs
  kv3fs completion zsh >/usr/local/share/zsh/site-functions/_kv3fs
  kv3fs completion fish >~/.config/fish/completions/kv3fs.fish

or for one session: source <(kv3fs completion bash). The packages install all three.`
}

// Run prints the script.
func (c *completionCmd) Run(out io.Writer) error {
	_, err := io.WriteString(out, manual.Script(c.Shell, "kv3fs"))
	return err
}

// completeCmd is what the scripts of shells ask.
type completeCmd struct {
	Shell string   `arg:""`
	Words []string `arg:"" optional:"" passthrough:""`
}

// Run prints the candidates.
func (c *completeCmd) Run(kctx *kong.Context, out io.Writer) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	candidates, names := manual.Complete(kctx.Model.Node, words, knownValues)
	_, err := io.WriteString(out, manual.Answer(c.Shell, candidates, names))
	return err
}

// knownValues returns names that a flag or an argument takes besides others.
func knownValues(v *kong.Value) (all []string) {
	switch {
	case v.Flag == nil && v.Name == "engine", v.Flag != nil && v.Name == "engine":
		return engineconfig.Names()
	case v.Flag == nil && v.Name == "workload":
		return enginebench.Workloads()
	case v.Flag == nil:
		return nil
	case v.Name == "gpu":
		for _, g := range prefill.GPUs() {
			all = append(all, g.Name)
		}
	case v.Name == "bandwidth":
		for _, p := range prefill.Pipes() {
			all = append(all, p.Name)
		}
	}
	return all
}

// manualCmd writes what the packages and docs/reference have.
type manualCmd struct {
	Man       manCmd       `cmd:"" help:"Write a man page for each command into a directory."`
	Reference referenceCmd `cmd:"" help:"Write the pages of docs/reference into a directory."`
}

type manCmd struct {
	Dir string `arg:"" help:"The directory, which is created."`
}

// Run writes the pages.
func (c *manCmd) Run(kctx *kong.Context) error {
	files := map[string]string{}
	for _, page := range manual.Pages(kctx.Model.Node, manualAbout()) {
		files[page.Name] = page.Text
	}
	return writeFiles(c.Dir, files)
}

// manualAbout is what the manual says besides the commands.
func manualAbout() manual.About {
	b := thisBuild()
	about := manual.About{
		Version: b.Version, Home: "https://github.com/kv3fs/kv3fs", Configuration: "serve", File: "/etc/kv3fs/kv3fs.yaml", IsKey: isKey,
	}
	about.Date, _, _ = strings.Cut(b.Date, "T")
	for _, s := range exitStatuses() {
		about.Exit = append(about.Exit, [2]string{fmt.Sprint(s.status), s.meaning})
	}
	return about
}

// exitStatusMeaning is an exit status of the commands.
type exitStatusMeaning struct {
	status  int
	meaning string
}

// exitStatuses are all exit statuses.
func exitStatuses() []exitStatusMeaning {
	return []exitStatusMeaning{
		{0, "The command did what it was asked to do."},
		{exitFailed, "It failed; standard error says what, on what, and what to do. doctor: there are warnings. scrub: there is damage."},
		{exitUsage, "The command line, the environment or the configuration file is wrong. doctor: there are failures."},
		{exitCutOff, "serve: stopped in order, but clients that did not leave were cut off. status: the doctor has found something."},
		{exitUnhealthy, "status: a daemon is not ready or does not answer. keep --once: more is used than the capacity, and nothing more may go. reload: a setting has changed that needs a restart; the others hold."},
		{exitNothingRuns, "status: no daemon runs. keep --once: another keeper has the lease."},
		{exitInterrupted, "A signal ended the command before it had finished."},
	}
}
