package daemon

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// hostID says to which host a state directory belongs. The host name alone does not: a pod
// that is restarted may have a new one.
type hostID struct {
	Identity string `json:"identity"`
	// Named: Identity was given with --identity.
	Named   bool   `json:"named,omitempty"`
	Machine string `json:"machine,omitempty"` // a digest of the machine id; "" in containers
	Boot    string `json:"boot,omitempty"`    // of the kernel that used the directory last
	Host    string `json:"host"`              // its host name then
}

// thisHost returns the identity of this host: name, if it is given; else that of the machine;
// else, in a container, the host name.
func thisHost(h host.Host, name string) (hostID, error) {
	hostName, err := os.Hostname()
	if err != nil {
		return hostID{}, fmt.Errorf("read the host name: %w", err)
	}
	id := hostID{Identity: name, Named: name != "", Boot: h.BootID(), Host: hostName}
	if machine := h.MachineID(); machine != "" {
		const digits = 16
		// machine-id(5) asks not to show the number itself.
		id.Machine = fmt.Sprintf("%x", sha256.Sum256([]byte("kv3fs "+machine)))[:digits]
	}
	switch {
	case id.Named:
	case id.Machine != "":
		id.Identity = "machine-" + id.Machine
	default:
		id.Identity = "host-" + strings.ReplaceAll(hostName, "/", "_")
	}
	return id, nil
}

// sameHost reports whether a directory of id was used by the host me, perhaps under another
// name.
func (id hostID) sameHost(me hostID) bool {
	switch {
	case id.Named: // whoever is given that name again
		return false
	case id.Boot != "" && id.Boot == me.Boot:
		return true
	case id.Machine != "" && me.Machine != "":
		return id.Machine == me.Machine
	}
	return id.Host == me.Host
}

// ValidIdentity returns an error unless name can be the name of a host's state.
func ValidIdentity(name string) error {
	const most = 64
	other := strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
	if name == "" || len(name) > most || other != "" || name[0] == '.' {
		return fmt.Errorf("identity %q: want 1 to %d letters, digits, '.', '_' and '-', the first one not a '.'", name, most)
	}
	return nil
}

// hostFile is the file in a state directory that says to which host it belongs.
const hostFile = "host.json"

// readHostID returns to whom a state directory belongs. Version 0.1 wrote no hostFile and
// named the directory like the host.
func readHostID(dir string) (id hostID, err error) {
	text, err := os.ReadFile(filepath.Join(dir, hostFile))
	if errors.Is(err, unix.ESTALE) { // that host has just written it anew
		text, err = os.ReadFile(filepath.Join(dir, hostFile))
	}
	if errors.Is(err, os.ErrNotExist) {
		return hostID{Host: filepath.Base(dir)}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &id)
	}
	if err != nil {
		return id, fmt.Errorf("%s says which host the directory belongs to, and cannot be read: %w; remove it to go by the directory's name", filepath.Join(dir, hostFile), err)
	}
	return id, nil
}

// writeHostID notes that a state directory belongs to a host.
func writeHostID(dir string, id hostID) error {
	if was, err := readHostID(dir); err == nil && was == id {
		return nil
	}
	text, err := json.Marshal(id)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, hostFile+".*")
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	_, err = f.Write(append(text, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, hostFile))
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}
