#include "app/base/file_chooser.h"

#include "engine/base/error.h"

#include <fmt/format.h>
#include <systemd/sd-bus.h>

#include <unistd.h>
#include <atomic>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

namespace keyhole {

namespace {

constexpr const char* kService = "org.freedesktop.portal.Desktop";
constexpr const char* kObject = "/org/freedesktop/portal/desktop";

struct CloseBus {
    void operator()(sd_bus* bus) const { sd_bus_flush_close_unref(bus); }
};
struct DropMessage {
    void operator()(sd_bus_message* message) const { sd_bus_message_unref(message); }
};
struct DropSlot {
    void operator()(sd_bus_slot* slot) const { sd_bus_slot_unref(slot); }
};
using Bus = std::unique_ptr<sd_bus, CloseBus>;
using Message = std::unique_ptr<sd_bus_message, DropMessage>;
using Slot = std::unique_ptr<sd_bus_slot, DropSlot>;

[[noreturn]] void no_dialog(const std::string& why) {
    fail(ErrorCode::io, "the desktop offers no file dialog ({}); type the path instead", why);
}

int checked(int result, const char* what) {
    if (result < 0) no_dialog(fmt::format("{}: {}", what, std::strerror(-result)));
    return result;
}

struct Response {
    bool came = false;
    std::optional<std::filesystem::path> path;
};

/// Reads the signal Response: (u response, a{sv} results). 0: the user chose.
int take_response(sd_bus_message* message, void* data, sd_bus_error*) {
    Response& response = *static_cast<Response*>(data);
    response.came = true;
    std::uint32_t code = 1;
    if (sd_bus_message_read(message, "u", &code) < 0 || code != 0) return 0;
    if (sd_bus_message_enter_container(message, 'a', "{sv}") < 0) return 0;
    while (sd_bus_message_enter_container(message, 'e', "sv") > 0) {
        const char* key = nullptr;
        if (sd_bus_message_read(message, "s", &key) < 0) return 0;
        if (std::string_view(key) == "uris") {
            if (sd_bus_message_enter_container(message, 'v', "as") < 0) return 0;
            if (sd_bus_message_enter_container(message, 'a', "s") < 0) return 0;
            const char* uri = nullptr;
            if (sd_bus_message_read(message, "s", &uri) > 0) response.path = path_of_uri(uri);
            return 0;
        }
        sd_bus_message_skip(message, "v");
        sd_bus_message_exit_container(message);
    }
    return 0;
}

/// Appends the options of the call: a{sv}.
void append_options(sd_bus_message* call, const FileQuestion& question, const std::string& token) {
    checked(sd_bus_message_open_container(call, 'a', "{sv}"), "message");
    checked(sd_bus_message_append(call, "{sv}", "handle_token", "s", token.c_str()), "message");
    if (question.folder) checked(sd_bus_message_append(call, "{sv}", "directory", "b", 1), "message");
    if (question.saves && !question.name.empty())
        checked(sd_bus_message_append(call, "{sv}", "current_name", "s", question.name.c_str()), "message");
    if (!question.pattern.empty())
        checked(sd_bus_message_append(call, "{sv}", "filters", "a(sa(us))", 1, question.filter_name.c_str(),
                                      1, std::uint32_t{0}, question.pattern.c_str()),
                "message");
    checked(sd_bus_message_close_container(call), "message");
}

}  // namespace

std::optional<std::filesystem::path> path_of_uri(const std::string& uri) {
    constexpr std::string_view kScheme = "file://";
    if (!uri.starts_with(kScheme)) return std::nullopt;
    const std::size_t begin = uri.find('/', kScheme.size());  // after the host, which is empty or this one
    if (begin == std::string::npos) return std::nullopt;
    std::string path;
    for (std::size_t i = begin; i < uri.size(); ++i) {
        if (uri[i] != '%') {
            path += uri[i];
            continue;
        }
        unsigned byte = 0;
        const char* const digits = uri.data() + i + 1;
        if (i + 2 >= uri.size() || std::from_chars(digits, digits + 2, byte, 16).ptr != digits + 2 ||
            byte == 0)
            return std::nullopt;
        path += static_cast<char>(byte);
        i += 2;
    }
    return std::filesystem::path(path);
}

std::optional<std::filesystem::path> choose_file(const FileQuestion& question,
                                                 const std::function<bool()>& waits) {
    sd_bus* opened = nullptr;
    checked(sd_bus_open_user(&opened), "no session bus");
    const Bus bus(opened);
    const char* name = nullptr;
    checked(sd_bus_get_unique_name(bus.get(), &name), "session bus");
    // The request's object follows from our name and our token, so its signal cannot be missed.
    static std::atomic<int> n_asked = 0;
    const std::string token = fmt::format("keyhole_{}_{}", ::getpid(), ++n_asked);
    std::string sender(name + 1);
    for (char& c : sender)
        if (c == '.') c = '_';
    const std::string request = fmt::format("{}/request/{}/{}", kObject, sender, token);
    Response response;
    sd_bus_slot* matched = nullptr;
    checked(sd_bus_match_signal(bus.get(), &matched, kService, request.c_str(),
                                "org.freedesktop.portal.Request", "Response", take_response, &response),
            "session bus");
    const Slot slot(matched);

    sd_bus_message* made = nullptr;
    checked(sd_bus_message_new_method_call(bus.get(), &made, kService, kObject,
                                           "org.freedesktop.portal.FileChooser",
                                           question.saves ? "SaveFile" : "OpenFile"),
            "session bus");
    const Message call(made);
    checked(sd_bus_message_append(call.get(), "ss", "", question.title.c_str()), "message");
    append_options(call.get(), question, token);
    sd_bus_error error = SD_BUS_ERROR_NULL;
    sd_bus_message* answered = nullptr;
    constexpr std::uint64_t kMostMicroseconds = 10'000'000;  // the portal may have to start
    const int called = sd_bus_call(bus.get(), call.get(), kMostMicroseconds, &error, &answered);
    const Message answer(answered);
    const std::string why =
        error.message != nullptr ? error.message : std::strerror(called < 0 ? -called : 0);
    sd_bus_error_free(&error);
    if (called < 0) no_dialog(why);

    constexpr std::uint64_t kPause = 200'000;  // microseconds
    while (!response.came) {
        if (!waits()) return std::nullopt;
        if (checked(sd_bus_process(bus.get(), nullptr), "session bus") == 0)
            checked(sd_bus_wait(bus.get(), kPause), "session bus");
    }
    return response.path;
}

}  // namespace keyhole
