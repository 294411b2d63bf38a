package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

	kv3fs "github.com/kv3fs/kv3fs/internal/version"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// commit and date replace the version-control stamps in builds that lack them, such as
// from an archive or with -buildvcs=false:
//
//	-ldflags "-X main.commit=$(git describe --always --dirty --abbrev=40 --exclude='*') -X main.date=$(git log -1 --format=%cI)"
var commit, date string

// upstream is the state of 3FS whose client interfaces docs/spec/usrbio.md
// describes. USRBIO has no version number of its own.
const upstream = "deepseek-ai/3FS e2cef822 (2026-03-27)"

// buildInfo describes a build.
type buildInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified"` // the source had uncommitted changes
	Date     string `json:"date,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`

	Upstream     string `json:"usrbio"`        // the 3FS commit whose rings and control directory this build implements
	IoctlVersion int    `json:"ioctl_version"` // what the mount answers to GET_IOCTL_VERSION
	Magic        string `json:"magic"`         // and to GET_MAGIC_NUM
	FUSE         string `json:"fuse"`          // versions of the kernel's FUSE protocol
}

// thisBuild describes the running binary.
func thisBuild() buildInfo {
	b := buildInfo{
		Version: kv3fs.Current(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Upstream: upstream, IoctlVersion: wire.InterfaceVersion, Magic: fmt.Sprintf("%#x", wire.Magic),
		FUSE: "7.12 and later", // the oldest that go-fuse accepts
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.time":
				b.Date = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	if commit != "" {
		b.Commit, b.Modified = strings.CutSuffix(commit, "-dirty")
	}
	if date != "" {
		b.Date = date
	}
	return b
}

// version returns the version with the commit it was built from, such as
// 1.3.0+578863dd6ab1.
func version() string {
	b := thisBuild()
	if b.Commit == "" {
		return b.Version
	}
	text := b.Version + "+" + b.Commit[:min(12, len(b.Commit))]
	if b.Modified {
		text += ".modified"
	}
	return text
}

// write prints the build as text.
func (b buildInfo) write(out io.Writer) error {
	commit, date := b.Commit, b.Date
	if commit == "" {
		commit = "unknown"
	}
	if b.Modified {
		commit += ", modified"
	}
	if date == "" {
		date = "unknown"
	}
	_, err := fmt.Fprintf(out, `kv3fs %s
commit:   %s
date:     %s
go:       %s
platform: %s
usrbio:   as in %s
ioctls:   version %d, magic %s
fuse:     %s
`, b.Version, commit, date, b.Go, b.Platform, b.Upstream, b.IoctlVersion, b.Magic, b.FUSE)
	return err
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print JSON instead of text."`
}

// Run prints this build.
func (c *versionCmd) Run(out io.Writer) error {
	if c.JSON {
		return writeJSON(out, "version", false, thisBuild())
	}
	return thisBuild().write(out)
}

// versionFlag is the flag --version. It does what the command version does.
type versionFlag bool

// BeforeReset prints the version and ends the program.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	if err := thisBuild().write(app.Stdout); err != nil {
		return err
	}
	return exitStatus(0)
}
