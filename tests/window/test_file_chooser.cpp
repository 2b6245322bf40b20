// The desktop's file dialog, against a portal of our own on a bus of our own; and pictures on the clipboard.
#include "app/base/clipboard_image.h"
#include "app/base/file_chooser.h"

#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <systemd/sd-bus.h>

#include <sys/stat.h>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace keyhole::test_file_chooser {
namespace {

TEST(FileChooser, PathsOfUris) {
    EXPECT_EQ(path_of_uri("file:///tmp/run.keyhole"), "/tmp/run.keyhole");
    EXPECT_EQ(path_of_uri("file://localhost/tmp/a%20b%25.png"), "/tmp/a b%.png");
    EXPECT_EQ(path_of_uri("file:///tmp/%C3%A4"), "/tmp/\xc3\xa4");
    for (const char* wrong :
         {"", "/tmp/a", "http://host/a", "file://", "file:///a%2", "file:///a%zz", "file:///a%00b"})
        EXPECT_EQ(path_of_uri(wrong), std::nullopt) << wrong;
}

/// Sets a variable of the environment, and restores it.
class Variable {
  public:
    Variable(const char* name, const std::string& value) : name_(name) {
        if (const char* before = std::getenv(name)) before_ = before;
        ::setenv(name, value.c_str(), 1);
    }
    ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

  private:
    const char* name_;
    std::optional<std::string> before_;
};

TEST(FileChooser, WithoutADesktopOneLineSaysSo) {
    const Variable bus("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere/bus");
    try {
        (void)choose_file({}, [] { return true; });
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_NE(std::string(error.what()).find("type the path instead"), std::string::npos) << error.what();
    }
}

/// A bus, and on it a portal that answers as the tests want.
class Portal : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto daemon = find_program("dbus-daemon");
        if (!daemon) GTEST_SKIP() << "dbus-daemon is not installed";
        const std::string address = "unix:path=" + (folder_.path() / "bus").string();
        daemon_.emplace(std::vector<std::string>{daemon->string(), "--session", "--nofork", "--nopidfile",
                                                 "--address=" + address},
                        std::vector<std::pair<std::string, std::string>>{});
        variable_.emplace("DBUS_SESSION_BUS_ADDRESS", address);
        for (int i = 0; i < 500 && sd_bus_open_user(&bus_) < 0; ++i)  // until the daemon listens
            ASSERT_EQ(daemon_->wait_for(std::chrono::milliseconds(20)), std::nullopt) << daemon_->output();
        ASSERT_NE(bus_, nullptr);
        static const sd_bus_vtable kMethods[] = {
            SD_BUS_VTABLE_START(0), SD_BUS_METHOD("OpenFile", "ssa{sv}", "o", asked, 0),
            SD_BUS_METHOD("SaveFile", "ssa{sv}", "o", asked, 0), SD_BUS_VTABLE_END};
        ASSERT_GE(sd_bus_add_object_vtable(bus_, nullptr, "/org/freedesktop/portal/desktop",
                                           "org.freedesktop.portal.FileChooser", kMethods, this),
                  0);
        ASSERT_GE(sd_bus_request_name(bus_, "org.freedesktop.portal.Desktop", 0), 0);
        thread_ = std::jthread([this](const std::stop_token& stop) {
            while (!stop.stop_requested())
                if (sd_bus_process(bus_, nullptr) == 0) sd_bus_wait(bus_, 20'000);
        });
    }
    void TearDown() override {
        thread_ = {};
        sd_bus_flush_close_unref(bus_);
    }

    std::uint32_t code_ = 0;  // 0: the user chose, 1: cancelled
    std::string uri_ = "file:///tmp/chosen%20one.keyhole";
    bool answers_ = true;
    std::string method_, title_, name_, pattern_;  // as asked

  private:
    reference::TempFolder folder_{"portal"};
    std::optional<ChildProcess> daemon_;
    std::optional<Variable> variable_;
    sd_bus* bus_ = nullptr;
    std::jthread thread_;

    static int asked(sd_bus_message* call, void* data, sd_bus_error*) {
        Portal& self = *static_cast<Portal*>(data);
        const char *parent = nullptr, *title = nullptr, *key = nullptr;
        sd_bus_message_read(call, "ss", &parent, &title);
        self.title_ = title;
        self.method_ = sd_bus_message_get_member(call);
        std::string token;
        sd_bus_message_enter_container(call, 'a', "{sv}");
        while (sd_bus_message_enter_container(call, 'e', "sv") > 0) {
            sd_bus_message_read(call, "s", &key);
            const std::string_view option = key;
            const char* text = "";
            if (option == "handle_token" || option == "current_name") {
                sd_bus_message_read(call, "v", "s", &text);
                (option == "handle_token" ? token : self.name_) = text;
            } else if (option == "filters") {
                const char* words = "";
                std::uint32_t kind = 9;
                sd_bus_message_read(call, "v", "a(sa(us))", 1, &words, 1, &kind, &text);
                self.pattern_ = text;
            } else {
                sd_bus_message_skip(call, "v");
            }
            sd_bus_message_exit_container(call);
        }
        std::string sender = sd_bus_message_get_sender(call) + 1;
        for (char& c : sender)
            if (c == '.') c = '_';
        const std::string request = "/org/freedesktop/portal/desktop/request/" + sender + "/" + token;
        sd_bus_reply_method_return(call, "o", request.c_str());
        if (!self.answers_) return 1;
        sd_bus_emit_signal(sd_bus_message_get_bus(call), request.c_str(), "org.freedesktop.portal.Request",
                           "Response", "ua{sv}", self.code_, 2, "choices", "s", "other", "uris", "as", 1,
                           self.uri_.c_str());
        return 1;
    }
};

TEST_F(Portal, GivesTheChosenFile) {
    const auto path =
        choose_file({false, false, "Open a trace", "", "Traces", "*.keyhole"}, [] { return true; });
    EXPECT_EQ(path, "/tmp/chosen one.keyhole");
    EXPECT_EQ(method_, "OpenFile");
    EXPECT_EQ(title_, "Open a trace");
    EXPECT_EQ(pattern_, "*.keyhole");
}

TEST_F(Portal, SavesUnderASuggestedName) {
    EXPECT_EQ(choose_file({true, false, "Save", "run.keyhole", "", ""}, [] { return true; }),
              "/tmp/chosen one.keyhole");
    EXPECT_EQ(method_, "SaveFile");
    EXPECT_EQ(name_, "run.keyhole");
}

TEST_F(Portal, AClosedDialogChoosesNothing) {
    code_ = 1;
    EXPECT_EQ(choose_file({}, [] { return true; }), std::nullopt);
}

TEST_F(Portal, StopsWaitingWhenAskedTo) {
    answers_ = false;
    std::atomic<int> n = 0;
    EXPECT_EQ(choose_file({}, [&] { return ++n < 3; }), std::nullopt);
    EXPECT_EQ(n, 3);
}

TEST(ClipboardImage, GoesToTheProgramOfTheDesktop) {
    const reference::TempFolder folder("clipboard");
    const std::filesystem::path picture = folder.path() / "p.png", taken = folder.path() / "taken";
    std::ofstream(picture) << "the picture";
    {
        const Variable path("PATH", folder.path().string());
        ::unsetenv("WAYLAND_DISPLAY");
        try {
            copy_image_to_clipboard(picture);
            FAIL();
        } catch (const Error& error) {
            EXPECT_NE(std::string(error.what()).find("package xclip"), std::string::npos) << error.what();
        }
        std::ofstream(folder.path() / "xclip")
            << "#!/bin/sh\n[ \"$*\" = '-selection clipboard -t image/png' ] || exit 3\n/bin/cat >'"
            << taken.string() << "'\n";
        ::chmod((folder.path() / "xclip").c_str(), 0755);
        copy_image_to_clipboard(picture);
        std::ofstream(folder.path() / "xclip") << "#!/bin/sh\nexit 4\n";
        EXPECT_THROW(copy_image_to_clipboard(picture), Error);
    }
    std::ostringstream text;
    text << std::ifstream(taken).rdbuf();
    EXPECT_EQ(text.str(), "the picture");
}

}  // namespace
}  // namespace keyhole::test_file_chooser
