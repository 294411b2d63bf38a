// Package measure runs benchmarks: it starts and stops the daemons and services that they
// measure, lets contenders take turns, counts progress and summarises measurements.
//
// A benchmark has an Options and a Report of its own and one function
//
//	Run(ctx context.Context, o Options) (*Report, error)
//
// with this contract:
//
//   - Options that are zero get their defaults, and all are checked before anything is
//     started. The error begins with "bench:" and names the value and the choice.
//   - Whatever Run starts or creates, it stops and removes before it returns: child
//     processes (StartDaemon, StartPageService, StartChild), directories, mounts and
//     shared memory. They also end if this process is killed.
//   - Contenders take turns, run by run (Turns), after one round of warm-up. The median
//     counts; Spread also has the extremes.
//   - What the contenders moved is checked, outside the time that is measured.
//   - When ctx ends, Run returns ctx.Err() together with the Report of what was complete.
//   - Report has WriteTable for people and JSON tags for programs. Aims are printed
//     beside the figures and decide nothing.
package measure
