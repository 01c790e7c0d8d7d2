// asynq beside a test. Usage: asynq add ID... | work NAME | archived
//
// `add` enqueues tasks and prints `added`. `work` runs a server that does one task at a time: a task prints `started ID`,
// waits for SLOW seconds, and prints `ran ID`. `archived` prints each archived task as `ID ERROR`, and then `end`.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

const queue = "mails"

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func add(redis asynq.RedisConnOpt, ids []string) {
	client := asynq.NewClient(redis)
	defer client.Close()
	for _, id := range ids {
		// Bytes that are neither text nor JSON.
		payload := append([]byte{0, 0xff, 0x0d, 0x0a}, id...)
		options := []asynq.Option{asynq.TaskID(id), asynq.Queue(queue), asynq.MaxRetry(5), asynq.Unique(time.Hour)}
		_, err := client.Enqueue(asynq.NewTask("send", payload), options...)
		check(err)
	}
	fmt.Println("added")
}

func work(redis asynq.RedisConnOpt) {
	slow, _ := strconv.ParseFloat(os.Getenv("SLOW"), 64)
	config := asynq.Config{Concurrency: 1, Queues: map[string]int{queue: 1}, LogLevel: asynq.FatalLevel}
	server := asynq.NewServer(redis, config)
	check(server.Run(asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		id := string(task.Payload()[4:])
		fmt.Println("started", id)
		time.Sleep(time.Duration(slow * float64(time.Second)))
		fmt.Println("ran", id)
		return nil
	})))
}

func archived(redis asynq.RedisConnOpt) {
	tasks, err := asynq.NewInspector(redis).ListArchivedTasks(queue)
	check(err)
	for _, task := range tasks {
		fmt.Println(task.ID, task.LastErr)
	}
	fmt.Println("end")
}

func main() {
	redis, err := asynq.ParseRedisURI(os.Getenv("REDIS_URL"))
	check(err)
	switch os.Args[1] {
	case "add":
		add(redis, os.Args[2:])
	case "work":
		work(redis)
	case "archived":
		archived(redis)
	}
}
