//! `weft ls`: lists directories.

use crate::accounts::Accounts;
use crate::calendar;
use crate::failure::{Ending, Explain, Failure, Outcome};
use crate::output::{self, Answer, printable};
use crate::session::{Session, Sessions};
use crate::table::Table;
use crate::target::{Target, WeftPath};
use crate::tree;
use std::ffi::OsString;
use weft_protocol::{Attributes, FileKind};

const HELP: &str = "\
One name per line, ordered by bytes. Times are in UTC.

Examples:
  weft ls weft:/
  weft ls -l job42:/results
  weft ls -lR job42:/ | grep h5";

/// List directories of a file system
#[derive(clap::Args, Debug)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// What to list: NAME:/path
    #[arg(value_name = "PATH", default_value = "weft:/")]
    paths: Vec<OsString>,
    /// Kind, permissions, links, owner, group, size and time of each
    #[arg(short)]
    long: bool,
    /// Directories below too
    #[arg(short = 'R')]
    recursive: bool,
    /// Names that begin with a dot too
    #[arg(short)]
    all: bool,
    /// Directories themselves, not what is in them
    #[arg(short)]
    directory: bool,
}

/// One line of a listing.
struct Item {
    name: Vec<u8>,
    kind: FileKind,
    /// Asked for only when they are shown.
    attributes: Option<Attributes>,
    /// Of a symbolic link, when it is shown.
    link: Option<Vec<u8>>,
}

/// How listings look.
struct Lister<'a> {
    args: &'a Args,
    accounts: Accounts,
    answer: Answer,
    /// Whether a listing was printed before, so that an empty line parts it from the next.
    begun: bool,
    /// What could not be listed last; the others were told of.
    failed: Option<Failure>,
}

pub fn run(args: &Args) -> Outcome {
    let paths: Vec<WeftPath> = args.paths.iter().map(|path| Target::in_weft(path, "ls")).collect::<Outcome<_>>()?;
    let mut sessions = Sessions::default();
    let mut lister = Lister { args, accounts: Accounts::read(), answer: Answer::new(), begun: false, failed: None };
    let headed = paths.len() > 1 || args.recursive;
    for path in &paths {
        let listed = sessions.of(path).and_then(|session| lister.list_path(&session, path, headed));
        match listed {
            Err(failure) if failure.is_closed_pipe() || paths.len() == 1 => return Err(failure),
            Err(failure) => lister.failed.replace(failure).iter().for_each(output::warn),
            Ok(()) => {}
        }
    }
    lister.answer.finish()?;
    sessions.close()?;
    lister.failed.map_or(Ok(Ending::Done), Err)
}

impl Lister<'_> {
    /// Lists what a path names.
    fn list_path(&mut self, session: &Session, path: &WeftPath, headed: bool) -> Outcome<()> {
        let entry = session.walk(path, !self.args.long, "ls")?;
        let entry = if self.args.long { entry.with_size().explain(|| format!("ls {path}"))? } else { entry };
        if entry.attributes.kind == FileKind::Directory && !self.args.directory {
            return self.list_directory(session, path, &entry.attributes, headed);
        }
        let attributes = Some(entry.attributes.clone());
        let item = self.complete(session, path.path.clone(), entry.attributes.kind, attributes, path)?;
        self.print(&[item])
    }

    fn list_directory(&mut self, session: &Session, path: &WeftPath, of: &Attributes, headed: bool) -> Outcome<()> {
        let listed = tree::list(session, of.inode, self.args.long).explain(|| format!("ls {path}"))?;
        let shown = |name: &[u8]| self.args.all || !name.starts_with(b".");
        let mut items = Vec::new();
        let mut below = Vec::new();
        for entry in listed.iter().filter(|entry| shown(entry.name.as_bytes())) {
            let inner = path.join(entry.name.as_bytes());
            let attributes = match self.args.long || (self.args.recursive && entry.kind == FileKind::Directory) {
                true => match tree::attributes_of(session, entry) {
                    // Removed since it was listed.
                    Err(weft_protocol::Error::NotFound | weft_protocol::Error::Stale) => continue,
                    attributes => match attributes.explain(|| format!("ls {inner}")) {
                        Ok(attributes) => Some(attributes),
                        // A node is away: the rest is listed.
                        Err(failure) => {
                            self.failed.replace(failure).iter().for_each(output::warn);
                            None
                        }
                    },
                },
                false => None,
            };
            if let (FileKind::Directory, true, Some(attributes)) = (entry.kind, self.args.recursive, &attributes) {
                below.push((inner.clone(), attributes.clone()));
            }
            items.push(self.complete(session, entry.name.as_bytes().to_vec(), entry.kind, attributes, &inner)?);
        }
        if headed {
            let space = if self.begun { "\n" } else { "" };
            self.answer.line(format_args!("{space}{path}:"))?;
        }
        self.begun = true;
        self.print(&items)?;
        below.iter().try_for_each(|(path, attributes)| self.list_directory(session, path, attributes, headed))
    }

    /// Adds the target of a symbolic link where it is shown.
    fn complete(
        &self,
        session: &Session,
        name: Vec<u8>,
        kind: FileKind,
        attributes: Option<Attributes>,
        path: &WeftPath,
    ) -> Outcome<Item> {
        let link = match (kind, &attributes) {
            (FileKind::Symlink, Some(attributes)) if self.args.long => {
                let target = session.client.read_link(&session.who, attributes.inode);
                Some(target.explain(|| format!("ls {path}"))?)
            }
            _ => None,
        };
        Ok(Item { name, kind, attributes, link })
    }

    fn print(&mut self, items: &[Item]) -> Outcome<()> {
        if !self.args.long {
            return items.iter().try_for_each(|item| self.answer.line(format_args!("{}", printable(&item.name))));
        }
        let mut table = Table::new(&["", ">", "", "", ">", "", ""]).headless();
        for item in items {
            let Some(attributes) = &item.attributes else {
                let unknown = || "?".to_owned();
                let mode = format!("{}?????????", kind_letter(item.kind));
                let name = printable(&item.name).to_string();
                table.row([mode, unknown(), unknown(), unknown(), unknown(), unknown(), name]);
                continue;
            };
            let link = item.link.as_deref().map(|link| format!(" -> {}", printable(link))).unwrap_or_default();
            table.row([
                mode_text(item.kind, attributes.mode),
                attributes.links.to_string(),
                self.accounts.user(attributes.uid),
                self.accounts.group(attributes.gid),
                attributes.size.to_string(),
                calendar::date_time(attributes.mtime),
                format!("{}{link}", printable(&item.name)),
            ]);
        }
        self.answer.bytes(table.to_string().as_bytes())
    }
}

/// The kind as `ls -l` shows it.
fn kind_letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
    }
}

/// Kind and permissions as `ls -l` shows them: `drwxr-sr-t`.
pub fn mode_text(kind: FileKind, mode: u16) -> String {
    let mut text = String::from(kind_letter(kind));
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift & 7;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_as_everybody_knows_them() {
        let cases = [
            (FileKind::Regular, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::Directory, 0o2750, "drwxr-s---"),
            (FileKind::Regular, 0o7000, "---S--S--T"),
            (FileKind::Symlink, 0o777, "lrwxrwxrwx"),
        ];
        for (kind, mode, text) in cases {
            assert_eq!(mode_text(kind, mode), text);
        }
    }
}
