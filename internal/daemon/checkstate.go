package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
)

// CheckState reports whether a daemon with this configuration would take over from the one that serves now: its rings, and its mount
// with all that is open there. The error says in what it differs. Nothing is changed, and the other daemon goes on meanwhile.
func CheckState(c Config) (report string, err error) {
	quiet := slog.New(slog.DiscardHandler)
	data, err := filepath.Abs(c.DataDir)
	if err == nil {
		data, err = filepath.EvalSymlinks(data)
	}
	if err != nil {
		return "", fmt.Errorf("data directory %s: %w", c.DataDir, err)
	}
	me, err := thisHost(host.Local(), c.Identity)
	if err != nil {
		return "", err
	}
	on, err := dataStore(host.Local(), data, c.Sharing, c.IO, quiet)
	if err != nil {
		return "", err
	}
	if _, err := on.mover(c.IO, data); err != nil {
		return "", err
	}
	path, of, why, err := restartPlace(c.RestartState, data, me)
	if err != nil {
		return "", err
	}
	if why != "" {
		return "", fmt.Errorf("it would keep no state of restarts: %s", why)
	}
	state, err := restart.Look(path, of)
	if err != nil {
		return "", err
	}
	registrations, err := ringserver.CheckState(state)
	if err != nil {
		return "", fmt.Errorf("rings and buffers: %w", err)
	}
	if err := errors.Join(checkSettings(state, c.Settings), state.ReadLog(grantsFile, grantsVersion, func([]byte) error { return nil })); err != nil {
		return "", err
	}
	point, err := mountPoint(c.MountPoint)
	if err != nil {
		return "", err
	}
	c.Mount.Passthrough, c.Mount.State, c.Mount.Log = on.passthrough(c.Mount.Passthrough), state, quiet
	if err := fuseserver.CheckState(point, tree.KeepsACLs(data), c.Mount); err != nil {
		return "", fmt.Errorf("the mount: %w", err)
	}
	if err := tree.CheckState(state); err != nil {
		return "", fmt.Errorf("the mount: %w", err)
	}
	return fmt.Sprintf("%s the state in %s: the mount at %s, and %d registrations of rings and buffers", tookOver, path, point, registrations), nil
}

// checkSettings returns an error if what clients have set would be given up.
func checkSettings(state *restart.Dir, o settings.Options) error {
	version, text, err := state.Read(settingsFile)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && version != settingsVersion:
		err = fmt.Errorf("version %d, where this version knows %d: %w", version, settingsVersion, restart.ErrDamaged)
	case err == nil:
		err = settings.New(o).Restore(text)
	}
	if err != nil {
		return fmt.Errorf("what clients have set: %w", err)
	}
	return nil
}
