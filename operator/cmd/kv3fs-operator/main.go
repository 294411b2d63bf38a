// Command kv3fs-operator makes clusters have the KVCaches that they ask for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kv3fs/kv3fs/operator/api/v1alpha1"
	"github.com/kv3fs/kv3fs/operator/internal/controller"
	"github.com/kv3fs/kv3fs/operator/internal/erase"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "kv3fs-operator:", err)
		stop()
		os.Exit(1)
	}
}

// run runs the operator, or one of the two programs of the pods that remove files: "erase DIR" and "wait".
func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "erase":
		return erase.Directory(args[1])
	case len(args) == 1 && args[0] == "wait":
		<-ctx.Done()
		return nil
	}
	o := options{}
	flags := flag.NewFlagSet("kv3fs-operator", flag.ContinueOnError)
	flags.StringVar(&o.namespace, "namespace", os.Getenv("POD_NAMESPACE"), "where everything is made: the operator's own namespace")
	flags.StringVar(&o.image, "image", os.Getenv("KV3FS_IMAGE"), "image of kv3fs, for caches that name none")
	flags.StringVar(&o.operator, "operator-image", os.Getenv("OPERATOR_IMAGE"), "image with this program, for the pods that remove files")
	flags.StringVar(&o.metrics, "metrics-address", "0", "HOST:PORT of metrics for Prometheus, over plain HTTP; 0: none")
	flags.StringVar(&o.health, "health-address", ":8081", "HOST:PORT of /healthz and /readyz")
	flags.BoolVar(&o.elect, "elect", true, "elect one of several replicas, by a Lease")
	flags.DurationVar(&o.every, "every", 30*time.Second, "how often daemons are asked how they are")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is none of its commands: erase DIR, wait, or flags alone to run the operator", flags.Arg(0))
	}
	return o.run(ctx)
}

// options are the operator's flags.
type options struct {
	namespace, image, operator, metrics, health string
	elect                                       bool
	every                                       time.Duration
}

func (o options) run(ctx context.Context) error {
	for _, f := range []struct{ flag, value string }{{"namespace", o.namespace}, {"image", o.image}, {"operator-image", o.operator}} {
		if f.value == "" {
			return fmt.Errorf("--%s is missing", f.flag)
		}
	}
	log := logr.FromSlogHandler(slog.NewJSONHandler(os.Stderr, nil))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	config, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cache.Options{ByObject: controller.Cached(o.namespace)},
		Metrics:                       server.Options{BindAddress: o.metrics},
		HealthProbeBindAddress:        o.health,
		LeaderElection:                o.elect,
		LeaderElectionID:              "kv3fs-operator",
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true, // the process ends right after Start
	})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := errors.Join(manager.AddHealthzCheck("ping", healthz.Ping), manager.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	reconciler := &controller.Reconciler{
		Client: manager.GetClient(), Direct: manager.GetAPIReader(), Events: manager.GetEventRecorder("kv3fs-operator"),
		Namespace: o.namespace, Image: o.image, Operator: o.operator, Every: o.every,
	}
	if err := reconciler.SetUp(manager); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	return manager.Start(ctx)
}
