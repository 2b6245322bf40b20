/// Asks for a file with the desktop's own dialog: the portal org.freedesktop.portal.FileChooser, which GNOME,
/// KDE and others offer on the session bus. Any thread; blocks.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace keyhole {

struct FileQuestion {
    bool saves = false;   ///< asks where to save; false: what to open
    bool folder = false;  ///< a folder and not a file
    std::string title;
    std::string name;         ///< suggested name of a file to save
    std::string filter_name;  ///< words for the files that are shown; empty: all files
    std::string pattern;      ///< of these files, such as "*.keyhole"
};

/// Returns the chosen file; nullopt if the user chose none, or `waits` returned false, which is asked several
/// times a second. Throws Error(io) if the desktop offers no such dialog, with the reason.
std::optional<std::filesystem::path> choose_file(const FileQuestion& question,
                                                 const std::function<bool()>& waits);

/// Returns the path of a file: URI (RFC 8089), with %XX decoded; nullopt for any other text.
std::optional<std::filesystem::path> path_of_uri(const std::string& uri);

}  // namespace keyhole
