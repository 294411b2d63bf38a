package daemon

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/admin/web"
	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// Listeners outlive a daemon that is restarted, or killed: whoever keeps its descriptors has them, too, and connections that are made
// meanwhile wait for the next daemon instead of being refused. That one knows them by names.

// listenerName returns the name of the listener at an address as it was configured. A path alone would not do: something else may listen
// there by now.
func listenerName(kind, network, where string) string {
	at := network + " " + where
	if network == "unix" {
		if info, err := os.Lstat(where); err == nil {
			st := info.Sys().(*syscall.Stat_t)
			at += fmt.Sprintf(" %d %d", st.Dev, st.Ino)
		}
	}
	return fmt.Sprintf("%s-%.8x", kind, sha256.Sum256([]byte(at)))
}

// dropRest closes what was handed over and nobody has taken, but the listeners of some names.
func dropRest(store *fdstore.Store, log *slog.Logger, but ...string) {
	if dropped, err := store.DropRest(but...); len(dropped) > 0 {
		log.Info("closed what was handed over and is not served any more", "descriptors", dropped, "err", err)
	}
}

// dropFormer closes the listeners of addresses that are not configured any more. Call it before any is made: a former one may have the port
// of a new one.
func dropFormer(store *fdstore.Store, p Pages, admin string, log *slog.Logger) {
	var still []string
	for _, a := range p.Listen {
		still = append(still, listenerName(fdstore.Pages, a.Network, a.Where))
	}
	if p.Cluster != nil {
		still = append(still, listenerName(fdstore.Peers, "tcp", p.Cluster.Listen))
	}
	if admin != "" {
		still = append(still, listenerName(fdstore.Admin, "tcp", admin))
	}
	dropRest(store, log, still...)
}

// keptListeners are those of a page service, by their names.
type keptListeners struct {
	store *fdstore.Store
	names []string
}

// listen takes over the listener of an address, or makes one, and has it kept. kind begins its name.
func (k *keptListeners) listen(kind string, a httpserver.Address, log *slog.Logger) (*httpserver.Listener, error) {
	name := listenerName(kind, a.Network, a.Where)
	if file := k.store.Take(name); file != nil {
		l, err := httpserver.Adopt(a, file)
		file.Close()
		if err == nil {
			k.names = append(k.names, name)
			k.warn(k.store.Has(name, l, fdstore.Connection{}), a, log)
			return l, nil
		}
		log.Warn("the page service's listener was handed over, but is no use; engines may be refused once", "address", a.String(), "err", errors.Join(err, k.store.Remove(name)))
	}
	l, err := httpserver.Listen(a)
	if err != nil {
		return nil, err
	}
	name = listenerName(kind, a.Network, a.Where) // the path is there now
	k.names = append(k.names, name)
	k.warn(k.store.Keep(name, l, fdstore.Connection{}), a, log)
	return l, nil
}

func (k *keptListeners) warn(err error, a httpserver.Address, log *slog.Logger) {
	if err != nil {
		log.Warn("engines that connect to the page service during a restart will be refused", "address", a.String(), "err", err)
	}
}

// end has nobody keep them any more.
func (k *keptListeners) end(log *slog.Logger) {
	for _, name := range k.names {
		if err := k.store.Remove(name); err != nil {
			log.Warn("a listener of the page service may stay open until whoever keeps it ends", "err", err)
		}
	}
}

// adminListener takes over the listener of the admin address, or makes one. name is that under which it is kept.
func adminListener(store *fdstore.Store, address string, log *slog.Logger) (l net.Listener, name string, err error) {
	name = listenerName(fdstore.Admin, "tcp", address)
	if file := store.Take(name); file != nil {
		l, err := net.FileListener(file)
		file.Close()
		if at, ok := l.(syscall.Conn); err == nil && ok {
			if err := store.Has(name, at, fdstore.Connection{}); err != nil {
				log.Warn("who asks the admin address during a restart will be refused", "err", err)
			}
			return l, name, nil
		}
		log.Warn("the admin address's listener was handed over, but is no use", "err", errors.Join(err, store.Remove(name)))
	}
	if l, err = web.Listen(address); err != nil {
		return nil, "", err
	}
	if at, ok := l.(syscall.Conn); ok {
		if err := store.Keep(name, at, fdstore.Connection{}); err != nil {
			log.Warn("who asks the admin address during a restart will be refused", "err", err)
		}
	}
	return l, name, nil
}
