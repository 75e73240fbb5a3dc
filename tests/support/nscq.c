/* Plays NVIDIA's library for NVSwitches (NSCQ 2) with its shapes: answers come from a function that
   a test sets. Made with: cc -shared -fPIC -o libnvidia-nscq.so.2 nscq.c */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    uint8_t octets[16];
} uuid_t;

typedef struct {
    char text[64];
} label_t;

typedef struct {
    int8_t code;
    void *session;
} session_t;

typedef struct {
    uint32_t size;
    uint8_t data[0x2000];
} report_t;

typedef struct {
    uint8_t data[0x1400];
    uint32_t size;
} chain_t;

enum { OPENING, COUNT, ARCH, REPORT, CHAIN, NAME };

/* What is asked about which switch; octets of the answer go to a place; a size or a code. */
typedef int32_t (*answer_t)(int32_t, int32_t, const uint8_t *, uint8_t *, uint32_t);

static answer_t answer;
static uint8_t nonce[32];
static int open_sessions;

void fake_answer(answer_t given) { answer = given; }
int fake_open_sessions(void) { return open_sessions; }

static int32_t ask(int32_t what, int32_t device, void *place, uint32_t room) {
    return answer(what, device, nonce, place, room);
}

session_t nscq_session_create(uint32_t flags) {
    session_t made = {0, &open_sessions};
    made.code = flags == 1 ? (int8_t)ask(OPENING, 0, 0, 0) : -5;
    if (made.code >= 0) {
        open_sessions++;
    }
    return made;
}

void nscq_session_destroy(void *session) {
    if (session == &open_sessions) {
        open_sessions--;
    }
}

int8_t nscq_uuid_to_label(const uuid_t *uuid, label_t *label, uint32_t flags) {
    (void)flags;
    memset(label, 0, sizeof *label);
    snprintf(label->text, sizeof label->text, "SWX-FAKE-%02u", uuid->octets[15]);
    return (int8_t)ask(NAME, uuid->octets[15], label->text, sizeof label->text);
}

int8_t nscq_session_set_input(void *session, uint32_t flags, void *input, uint32_t size) {
    if (session != &open_sessions || flags != 0 || size != sizeof nonce) {
        return -5;
    }
    memcpy(nonce, input, size);
    return 0;
}

int8_t nscq_session_path_observe(
    void *session, const char *path, void (*tell)(void), void *more, uint32_t flags
) {
    uuid_t uuid = {{0}};
    unsigned device = 0;
    char rest[64] = "";
    if (session != &open_sessions || flags != 0) {
        return -5;
    }
    if (strcmp(path, "/drv/nvswitch/{device}/uuid") == 0) {
        int32_t count = ask(COUNT, 0, 0, 0);
        for (int32_t each = 0; each < count; each++) {
            uuid.octets[15] = (uint8_t)each;
            ((void (*)(const uuid_t *, int8_t, const uuid_t *, void *))tell)(&uuid, 0, &uuid, more);
        }
        return count < 0 ? (int8_t)count : 0;
    }
    if (sscanf(path, "/SWX-FAKE-%02u/%63s", &device, rest) != 2) {
        return -2;
    }
    uuid.octets[15] = (uint8_t)device;
    if (strcmp(rest, "id/arch") == 0) {
        int32_t arch = ask(ARCH, (int32_t)device, 0, 0);
        int8_t code = arch < 0 ? (int8_t)arch : 0;
        ((void (*)(const uuid_t *, int8_t, int8_t, void *))tell)(&uuid, code, (int8_t)arch, more);
        return 0;
    }
    if (strcmp(rest, "config/attestation_report") == 0) {
        report_t report = {0, {0}};
        int32_t size = ask(REPORT, (int32_t)device, report.data, sizeof report.data);
        report.size = size < 0 ? 0 : (uint32_t)size;
        int8_t code = size < 0 ? (int8_t)size : 0;
        ((void (*)(const uuid_t *, int8_t, report_t, void *))tell)(&uuid, code, report, more);
        return 0;
    }
    if (strcmp(rest, "config/certificate") == 0) {
        chain_t chain = {{0}, 0};
        int32_t size = ask(CHAIN, (int32_t)device, chain.data, sizeof chain.data);
        chain.size = size < 0 ? 0 : (uint32_t)size;
        int8_t code = size < 0 ? (int8_t)size : 0;
        ((void (*)(const uuid_t *, int8_t, chain_t, void *))tell)(&uuid, code, chain, more);
        return 0;
    }
    return -1;
}
