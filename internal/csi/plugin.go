package csi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/kv3fs/kv3fs/internal/admin/web"
	"github.com/kv3fs/kv3fs/internal/csi/volumes"
)

// Config configures a plugin.
type Config struct {
	Name    string // of the driver
	Node    string
	Version string
	Mount   string // the daemon's
	Kubelet string // kubelet's root directory
	Pages   string // as in volumes.Config
	Paths
	Allow      []Grant // directories; none: every pod may use every one
	AllowPages []Grant // page namespaces
	AllowQuota []Grant // quotas; none: as Allow
	Patience   time.Duration
	SetQuota   func(ctx context.Context, dir string, bytes int64) error
	Web        Web
	Log        *slog.Logger
}

// Web is where metrics, health and readiness are asked for.
type Web struct {
	Address  string // HOST:PORT; "": nowhere
	Token    string
	TLS      *tls.Config
	Profiles bool
	// Optional makes an address that is in use a warning instead of an error.
	Optional bool
}

// stopTime bounds the wait for calls of kubelet at the end. It asks again after a restart.
const stopTime = 5 * time.Second

// Run serves until ctx ends. It calls serving once kubelet can find it.
func Run(ctx context.Context, c Config, serving func()) (err error) {
	v, err := volumes.Open(volumes.Config{
		Mount: c.Mount, Kubelet: c.Kubelet, State: c.State, Pages: c.Pages, Driver: c.Name, Patience: c.Patience, SetQuota: c.SetQuota, Log: c.Log,
	})
	if err != nil {
		return err
	}
	defer v.Close()
	r := &registrar{name: c.Name, endpoint: c.Endpoint, log: c.Log}
	m := newMetrics(v, r)
	admin, err := startWeb(c, v, m)
	if err != nil {
		return err
	}
	defer admin.Close()

	listeners, err := listenAll(c.Endpoint, c.Registration)
	if err != nil {
		return err
	}
	stopped := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel(nil)
	running.Go(func() {
		if err := v.Follow(ctx); err != nil {
			cancel(err)
		}
	})
	options := []grpc.ServerOption{grpc.UnaryInterceptor(m.observe(c.Log))}
	node := grpc.NewServer(options...)
	all := &service{c: c, volumes: v}
	spec.RegisterIdentityServer(node, all)
	spec.RegisterNodeServer(node, all)
	kubelet := grpc.NewServer(options...)
	registration.RegisterRegistrationServer(kubelet, r)
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for i, server := range []*grpc.Server{node, kubelet} {
		if listeners[i] != nil {
			stops = append(stops, serve(server, listeners[i], cancel))
		}
	}
	serving()
	<-ctx.Done()
	if stopped.Err() == nil {
		return context.Cause(ctx)
	}
	return nil
}

// serve serves at a listener, and returns what ends that.
func serve(s *grpc.Server, l net.Listener, failed func(error)) (stop func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			failed(fmt.Errorf("socket %s: %w", l.Addr(), err))
		}
	}()
	return func() {
		timer := time.AfterFunc(stopTime, s.Stop)
		s.GracefulStop()
		timer.Stop()
		<-ended
	}
}

// startWeb begins to answer for metrics, if that is wanted. What it returns may be nil.
func startWeb(c Config, v *volumes.Volumes, m *metrics) (*web.Server, error) {
	if c.Web.Address == "" {
		return nil, nil
	}
	s, err := web.Start(web.Options{
		Address: c.Web.Address, Token: c.Web.Token, TLS: c.Web.TLS, Profiles: c.Web.Profiles, Version: c.Version, Log: c.Log,
		Metrics: m.registry(), Ready: []web.Check{{Name: "mount", Ask: v.Ready}},
	})
	switch {
	case err == nil:
		c.Log.Info("metrics, health and readiness", "address", s.URL())
	case c.Web.Optional && errors.Is(err, web.ErrInUse):
		c.Log.Warn("no metrics, health and readiness", "err", err, "cure", "--admin-listen HOST:PORT, or off")
		return nil, nil
	}
	return s, err
}

// observe counts calls, and logs those that fail: kubelet shows them to the pod's owner, but not to the node's.
func (m *metrics) observe(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		answer, err := handle(ctx, request)
		code, method := status.Code(err), path.Base(info.FullMethod)
		m.calls.WithLabelValues(method, code.String()).Inc()
		if err != nil && code != codes.Unimplemented {
			log.Warn("kubelet's call failed", "call", method, "code", code.String(), "err", status.Convert(err).Message())
		}
		return answer, err
	}
}
