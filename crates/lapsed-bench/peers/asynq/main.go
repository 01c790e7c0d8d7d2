// Tasks through asynq, from being enqueued until their server is done with them. Usage: asynq REDIS_URL JOBS
//
// One process enqueues them, another is a server with a concurrency of 64, whose handler does nothing; completed tasks are not kept,
// which is asynq's default. Timed is from the first task's enqueueing until none is pending or active.
//
// Says its version and what it will call on stdout, waits for a line on stdin, works, says the result.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
)

const (
	queue       = "bench"
	concurrency = 64
	patience    = 5 * time.Minute
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func say(what map[string]any) {
	text, err := json.Marshal(what)
	check(err)
	fmt.Println(string(text))
}

func work(redis asynq.RedisConnOpt) {
	config := asynq.Config{Concurrency: concurrency, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel}
	nothing := asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })
	check(asynq.NewServer(redis, config).Run(nothing))
}

// How many tasks are not done.
func left(inspector *asynq.Inspector) int {
	info, err := inspector.GetQueueInfo(queue)
	check(err)
	return info.Pending + info.Active + info.Scheduled + info.Retry + info.Archived
}

func untilDone(inspector *asynq.Inspector) {
	for began := time.Now(); left(inspector) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > patience {
			panic("not all tasks were done in time")
		}
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/hibiken/asynq" {
			return module.Version
		}
	}
	return "unknown"
}

func main() {
	redis, err := asynq.ParseRedisURI(os.Args[1])
	check(err)
	if os.Args[2] == "work" {
		work(redis)
		return
	}
	jobs, err := strconv.Atoi(os.Args[2])
	check(err)
	// The worker dies with the thread that started it.
	runtime.LockOSThread()
	worker := exec.Command(os.Args[0], os.Args[1], "work")
	worker.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check(worker.Start())
	client, inspector := asynq.NewClient(redis), asynq.NewInspector(redis)
	enqueue := func() {
		_, err := client.Enqueue(asynq.NewTask("job", []byte(`{"number":1}`)), asynq.Queue(queue))
		check(err)
	}
	enqueue()
	untilDone(inspector)

	say(map[string]any{"version": version(), "call": fmt.Sprintf("Enqueue, server with concurrency %d", concurrency)})
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	check(err)
	began := time.Now()
	for range jobs {
		enqueue()
	}
	untilDone(inspector)
	took := time.Since(began)
	say(map[string]any{"took_ms": took.Seconds() * 1e3, "recovered": jobs - left(inspector)})
}
