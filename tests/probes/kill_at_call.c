/* Kills a process when it is about to make its K-th system call (ptrace(2)), which is
 * as good as at any instruction: between two calls it changes nothing but its memory.
 *
 *   kill_at_call itself K PROGRAM ARG...   the program
 *   kill_at_call child K PROGRAM ARG...    the first child of the program
 *   kill_at_call process K PID             a process that is there; says "ready" first
 *
 * Ends with 0 when it killed, with 3 when there was no K-th call. Whoever it started
 * has ended by then. It never lasts longer than a minute, and takes its victim along.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILLED = 0, FAILED = 1, NO_SUCH_CALL = 3, SECONDS_MAX = 60 };

static void fail(const char *what)
{
    fprintf(stderr, "kill_at_call: %s: %s\n", what, strerror(errno));
    exit(FAILED);
}

/* Runs a stopped victim until it is about to make this call, or is gone. Signals are
 * passed on to it. */
static int kill_at(pid_t victim, long call)
{
    long calls = 0;
    int inside = 0, signal_number = 0, status;

    for (;;) {
        if (ptrace(PTRACE_SYSCALL, victim, NULL, (void *)(long)signal_number) < 0 && errno != ESRCH)
            fail("cannot let it go on");
        if (waitpid(victim, &status, __WALL) < 0)
            return NO_SUCH_CALL;
        if (WIFEXITED(status) || WIFSIGNALED(status))
            return NO_SUCH_CALL;
        signal_number = 0;
        if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
            inside = !inside;
            if (inside && ++calls == call) {
                kill(victim, SIGKILL);
                while (waitpid(victim, &status, __WALL) == victim && WIFSTOPPED(status))
                    ;
                return KILLED;
            }
        } else if (status >> 16 == 0) {
            /* A birth announces itself by a stop that is none of its own. */
            signal_number = WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
        }
    }
}

static pid_t start(char **program)
{
    int status;
    pid_t child = fork();

    if (child < 0)
        fail("cannot fork");
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execv(program[0], program);
        fail(program[0]);
    }
    if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status))
        fail("cannot start it");
    return child;
}

/* Lets the program run to its first birth, and go; the child is stopped then. */
static pid_t first_child(pid_t program)
{
    const long births = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE;
    unsigned long child;
    int status, signal_number = 0;

    if (ptrace(PTRACE_SETOPTIONS, program, NULL, (void *)(births | PTRACE_O_EXITKILL)) < 0)
        fail("cannot follow it");
    for (;;) {
        ptrace(PTRACE_CONT, program, NULL, (void *)(long)signal_number);
        if (waitpid(program, &status, __WALL) < 0 || !WIFSTOPPED(status))
            return -1;
        if (status >> 16 != 0)
            break;
        signal_number = WSTOPSIG(status);
    }
    if (ptrace(PTRACE_GETEVENTMSG, program, NULL, &child) < 0)
        fail("cannot learn who was born");
    if (waitpid((pid_t)child, &status, __WALL) < 0 || !WIFSTOPPED(status))
        return -1;
    /* Nobody that the child starts is followed, nor is the program any more. */
    ptrace(PTRACE_SETOPTIONS, (pid_t)child, NULL, (void *)(long)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
    ptrace(PTRACE_DETACH, program, NULL, NULL);
    return (pid_t)child;
}

int main(int argc, char **argv)
{
    int status, result = NO_SUCH_CALL;
    long call;

    if (argc < 4)
        return FAILED;
    alarm(SECONDS_MAX);
    call = atol(argv[2]);
    if (strcmp(argv[1], "itself") == 0) {
        pid_t program = start(argv + 3);
        ptrace(PTRACE_SETOPTIONS, program, NULL, (void *)(long)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL));
        return kill_at(program, call);
    }
    if (strcmp(argv[1], "child") == 0) {
        pid_t program = start(argv + 3);
        pid_t child = first_child(program);
        if (child > 0)
            result = kill_at(child, call);
        while (waitpid(program, &status, 0) == program && WIFSTOPPED(status))
            ;
        return result;
    }
    pid_t victim = (pid_t)atol(argv[3]);
    if (ptrace(PTRACE_SEIZE, victim, NULL, (void *)(long)PTRACE_O_TRACESYSGOOD) < 0)
        fail("cannot seize it");
    if (ptrace(PTRACE_INTERRUPT, victim, NULL, NULL) < 0 || waitpid(victim, &status, __WALL) < 0)
        fail("cannot stop it");
    puts("ready");
    fflush(stdout);
    return kill_at(victim, call);
}
