package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// kubeletVolume is what kubelet notes beside the target of a CSI volume.
type kubeletVolume struct {
	Driver string `json:"driverName"`
	Handle string `json:"volumeHandle"`
}

// mostKubeletBytes is more than kubelet writes into such a file.
const mostKubeletBytes = 64 << 10

// reconcile compares the records with what is mounted. Volumes whose records were lost are taken from the table of mounts and
// kubelet's own files; records of pods that are gone, with their targets, are forgotten.
func (v *Volumes) reconcile(mounts []host.Mount) error {
	for target, r := range v.records {
		if _, mounted := host.At(mounts, target); mounted {
			continue
		}
		if _, err := os.Lstat(target); errors.Is(err, os.ErrNotExist) {
			if err := v.forget(target); err != nil {
				return err
			}
			continue
		}
		v.c.Log.Warn("a published volume is not mounted any more; kubelet publishes it again, or ends it", "volume", r.Volume, "target", target, "pod", r.Namespace+"/"+r.Pod)
	}
	for _, m := range mounts {
		if _, known := v.records[m.Point]; known || m.Type != host.HF3FSType || !host.Within(m.Point, v.c.Kubelet) {
			continue
		}
		r, ours := v.adopted(mounts, m)
		if !ours {
			continue
		}
		if err := v.note(r); err != nil {
			return err
		}
		v.c.Log.Warn("the record of a volume was lost: it was found in the table of mounts", "volume", r.Volume, "target", r.Target)
	}
	return nil
}

// adopted returns the record of a volume that is mounted, if kubelet says that it is this driver's. What is mounted in a volume is none: the
// files beside it are the pod's, on a mount that may hang.
func (v *Volumes) adopted(mounts []host.Mount, m host.Mount) (Record, bool) {
	dir := filepath.Dir(m.Point)
	sub := path.Join(".", strings.TrimPrefix(strings.TrimSuffix(m.Root, "//deleted"), "/"))
	if !inside(sub) || slices.ContainsFunc(mounts, func(o host.Mount) bool { return o.Type == host.HF3FSType && host.Within(dir, o.Point) }) {
		return Record{}, false
	}
	text, err := readRegular(filepath.Join(dir, "vol_data.json"), mostKubeletBytes)
	if err != nil {
		return Record{}, false
	}
	var noted kubeletVolume
	if err := json.Unmarshal(text, &noted); err != nil || noted.Driver != v.c.Driver || noted.Handle == "" {
		return Record{}, false
	}
	r := Record{Volume: noted.Handle, Target: m.Point, SubDirectory: sub, ReadOnly: slices.Contains(strings.Split(m.Options, ","), "ro"), Adopted: true}
	if pages, mounted := host.At(mounts, filepath.Join(m.Point, PagesDir)); mounted {
		r.Pages = path.Base(pages.Root)
	}
	return r, true
}

// readRegular reads a regular file that is not larger than that. It waits for no other end of what is none.
func readRegular(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() || fi.Size() > most {
		return nil, fmt.Errorf("%s is no regular file of at most %d bytes", path, most)
	}
	return io.ReadAll(io.LimitReader(f, most))
}
